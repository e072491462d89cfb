"""From result files to a page: charts, tables, statistics, templates. Independent of the experiments."""
