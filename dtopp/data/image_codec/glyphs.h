// A font to label pictures with: misc-fixed 6x10 of X11, in the public domain.
#pragma once

#include <cstdint>

namespace dtopp {

inline constexpr int kGlyphWidth = 6;
inline constexpr int kGlyphHeight = 10;
inline constexpr char kFirstGlyph = ' ';  // to '~'
inline constexpr int kGlyphCount = '~' - ' ' + 1;

// Made by scripts/make_glyphs.py. Rows from the top; the bit 1 << 5 is the leftmost pixel.
extern const uint8_t kGlyphs[kGlyphCount][kGlyphHeight];

}  // namespace dtopp
