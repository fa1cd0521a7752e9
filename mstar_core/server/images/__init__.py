"""`POST /v1/images/generations` and `POST /v1/images/edits`: pictures as in OpenAI's API, by models that list them."""
