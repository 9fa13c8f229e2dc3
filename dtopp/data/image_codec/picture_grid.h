// Pictures side by side with a line of text under each, to look at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtopp/data/image_codec/picture.h"

namespace dtopp {

struct GridCell {
  Picture picture;
  std::string label;  // cut to the cell's width; what is not printable ASCII becomes '?'
};

// Red, green and blue on white. The pictures, of one size, 1 or 3 channels each, are enlarged by the whole
// number that makes them 64 or more wide. Without any label there is no room for one. Rows may differ in
// length; std::invalid_argument where there is no picture or sizes differ.
Picture draw_grid(const std::vector<std::vector<GridCell>>& rows);

// How large a labelled grid of pictures of this size is.
struct GridExtent {
  int64_t height, width;
};
GridExtent grid_extent(int64_t rows, int64_t columns, int64_t height, int64_t width);

}  // namespace dtopp
