"""Small things that several rooms need: nothing here knows of records or of models."""
