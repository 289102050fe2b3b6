"""Products with a collective before or behind them."""
