"""Azure Blob Storage and ADLS Gen2."""
