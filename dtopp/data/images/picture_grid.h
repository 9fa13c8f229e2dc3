// Draws a grid of pictures for display, with an optional line of text under each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtopp/data/images/picture.h"

namespace dtopp::data {
struct GridCell {
  Picture picture;
  std::string label;  // cut to the cell's width; a character that is not printable ASCII becomes '?'
};

// Returns the grid as an RGB picture on white. The pictures have 1 or 3 channels and are enlarged by the
// smallest whole number that makes them at least 64 pixels wide. If no cell has a label, the grid has no
// space for labels. Rows may differ in length. Throws std::invalid_argument if there is no picture or if
// sizes differ.
Picture draw_grid(const std::vector<std::vector<GridCell>>& rows);

// Returns the size of a labeled grid of pictures of size height x width.
struct GridExtent {
  int64_t height, width;  // in pixels
};
GridExtent grid_extent(int64_t rows, int64_t columns, int64_t height, int64_t width);

}  // namespace dtopp::data
