"""The SNAC neural audio codec, decoder side: audio ids -> frames -> latents -> 24 kHz samples.

`config`, `reach`, `chunks` and `frames` are torch-free, so that a specification or a processor can use them;
`weights`, `layers`, `decoder`, `noise` and `stream` need torch and belong to the process that runs the decode node.
"""
