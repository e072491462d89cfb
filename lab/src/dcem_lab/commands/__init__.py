"""The sub-commands of `dcem`, one file each, and what they share."""
