"""The benchmark pipeline in other engines, each as a separate program."""
