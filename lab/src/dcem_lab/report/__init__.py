"""From files of results to a page: charts, tables, statistics, templates. It knows no experiment."""
