"""From results/ to figures and tables: one module an experiment, reading committed CSVs and nothing else."""
