Chlapec hází míč hnědému psovi.
