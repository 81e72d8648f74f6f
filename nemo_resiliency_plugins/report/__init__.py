"""What a job directory tells about its job: read as a stream, on any machine, without torch and NeMo-Run."""
