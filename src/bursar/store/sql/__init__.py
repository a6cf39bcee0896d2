"""What every SQL module uses: connections, pipelines, bulk writes and encodings."""
