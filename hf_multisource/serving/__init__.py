"""The service `hf-multisource serve`: translations over HTTP."""
