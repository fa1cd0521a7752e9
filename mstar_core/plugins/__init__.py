"""Plugins: found by their metadata, imported one at a time in isolation, judged, and asked for what they bring.

discovery   what is installed, without an import       FoundPlugin, or a PluginReport
manager     one plugin imported and checked            LoadedPlugin, or a PluginReport
registry    all of them; a model's owner               Registry
assemble    one model, checked as a whole              ModelSpec
"""
