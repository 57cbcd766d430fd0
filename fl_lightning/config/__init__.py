"""From YAML to objects: compose, allow-list, parse, build, presets."""
