"""Is a checkpoint healthy? One topic of rules a file; `judging` puts them together."""
