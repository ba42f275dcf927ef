"""Speed and memory of the trainers, as ratios that are measured side by side in one run."""
