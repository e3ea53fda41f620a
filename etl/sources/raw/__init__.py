"""The bytes of landed files, as tasks read them: parts of files, unpacked, taken apart into records."""
