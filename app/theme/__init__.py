"""How Traindeck looks: named colours, the palettes and style sheet made of them, fonts, drawn icons."""
