"""The load stage: a workload and a server in, a record for each request out."""
