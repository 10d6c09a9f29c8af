"""What every client saw: operations in Jepsen's model, as Parquet and JSON lines."""
