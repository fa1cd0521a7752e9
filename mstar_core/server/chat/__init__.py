"""`POST /v1/chat/completions`: conversations as in OpenAI's API, by every model whose card lists the route."""
