"""Images: where they come from (pictures.py), pixels as the model sees them (pixels.py), a small net (convnet.py)."""
