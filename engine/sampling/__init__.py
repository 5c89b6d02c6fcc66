"""From logits to token ids. Every row is treated on its own, so that no row's token depends on its neighbours."""
