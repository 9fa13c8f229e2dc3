// The pictures of a model as files.
#pragma once

#include <filesystem>
#include <functional>

#include "dtopp/data/image_codec/picture_grid.h"
#include "dtopp/inference/diffusion/picture_sampling.h"

namespace dtopp {

// UsageError where these pictures cannot be written under this name: latents as pictures, more than a grid
// can hold, a folder that is already there.
void require_writable(const std::filesystem::path& output, const PictureRequest& request,
                      const ImageLayout& layout);

// What is written follows from the name:
//   NAME.png   one grid, see PictureGrid
//   NAME.npz   arr_0 u8 [count, H, W, 3], or of latents f32 [count, C, H, W] in the units they were prepared
//              in; arr_1 i64 [count], the classes, where the model has any
//   else       a folder that is not there yet, with 00000.png, 00001.png, …
// `make` hands out the pictures, as sample_pictures does. What stands under the name before stays until all
// is written. DataError where that fails.
void write_pictures(const std::filesystem::path& output, const PictureRequest& request,
                    const ImageLayout& layout, const std::function<void(const TakePictures&)>& make);

// One row a class, or text, its name under each picture; without either as many rows as columns, about.
class PictureGrid {
 public:
  PictureGrid(const PictureRequest& request, const ImageLayout& layout);
  // Pictures first, first + 1, … as the model sees them; on the host.
  void add(int64_t first, const at::Tensor& x0_BCHW);
  // A PNG file.
  std::string encode() const;

 private:
  std::vector<std::vector<GridCell>> rows_;
  std::vector<std::string> labels_;  // of each row; none
  int64_t columns_;
};

}  // namespace dtopp
