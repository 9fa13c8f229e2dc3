#include "dtopp/eval/picture_files.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/data/files/npy.h"

namespace dtopp::eval {
namespace {

std::span<const std::byte> bytes_of(const Tensor& contiguous) {
  return {static_cast<const std::byte*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

std::vector<data::Picture> to_pictures(const Tensor& x0_BCHW) {
  const Tensor levels_BHWC = inference::to_levels(x0_BCHW);
  std::vector<data::Picture> pictures;
  for (int64_t i = 0; i < levels_BHWC.size(0); ++i) {
    data::Picture& picture =
        pictures.emplace_back(static_cast<int>(levels_BHWC.size(1)), static_cast<int>(levels_BHWC.size(2)),
                              static_cast<int>(levels_BHWC.size(3)));
    std::copy_n(levels_BHWC[i].const_data_ptr<uint8_t>(), picture.pixels.size(), picture.pixels.begin());
  }
  return pictures;
}

std::string class_name(const data::ImageLayout& layout, int64_t label) {
  const auto index = static_cast<size_t>(label);
  return index < layout.classes.size() ? layout.classes[index] : std::to_string(label);
}

struct GridSize {
  int64_t rows = 0, columns = 0;
};

// Returns one row per text or class; without them, an approximate square.
GridSize grid_size_of(const inference::PictureRequest& request) {
  const auto divided = [&](int64_t by) { return (request.count + by - 1) / by; };
  const int64_t conditions =
      request.text_NLS.defined() ? request.text_NLS.size(0) : std::ssize(request.classes);
  if (conditions > 0) return {std::min(conditions, request.count), divided(conditions)};
  const auto columns = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(request.count))));
  return {divided(columns), columns};
}

bool fits(const GridSize& grid, const data::ImageShape& shape) {
  const auto side = static_cast<int64_t>(data::kMaxSide), pixels = static_cast<int64_t>(data::kMaxPixels);
  if (grid.rows > side || grid.columns > side) return false;
  const data::GridExtent extent = data::grid_extent(grid.rows, grid.columns, shape.height, shape.width);
  return extent.height <= side && extent.width <= side && extent.height * extent.width <= pixels;
}

void write_npz(OutputFile& file, const inference::PictureRequest& request, const data::ImageLayout& layout,
               inference::PictureSampler& sampler) {
  const data::ImageShape& shape = layout.shape;
  data::NpzWriter npz(file);
  if (layout.is_latent)
    npz.begin("arr_0", "<f4", {request.count, shape.channels, shape.height, shape.width});
  else
    npz.begin("arr_0", "|u1", {request.count, shape.height, shape.width, 3});
  while (const auto batch = sampler.next()) {
    const Tensor values = layout.is_latent ? inference::to_latents(batch->x0_BCHW, layout)
                                           : inference::to_levels(batch->x0_BCHW).expand({-1, -1, -1, 3});
    npz.write(bytes_of(values.contiguous()));
  }
  if (!request.classes.empty()) {
    npz.begin("arr_1", "<i8", {request.count});
    const Tensor classes = at::tensor(request.classes, at::kLong);
    const Tensor turn = at::arange(request.count, at::kLong).remainder(classes.size(0));
    npz.write(bytes_of(classes.index_select(0, turn)));
  }
  npz.finish();
}

void write_folder(const fs::path& folder, inference::PictureSampler& sampler) {
  while (const auto batch = sampler.next()) {
    int64_t index = batch->first;
    for (const data::Picture& picture : to_pictures(batch->x0_BCHW)) {
      OutputFile file(folder / format("%05ld.png", index++));
      file.write(data::encode_png(picture));
      file.sync_and_close();
    }
  }
}

}  // namespace

void require_writable(const fs::path& output, const inference::PictureRequest& request,
                      const data::ImageLayout& layout) {
  const bool npz = output.extension() == ".npz", grid = output.extension() == ".png";
  if (layout.is_latent && !npz)
    throw UsageError("--output ", output, ": this model generates latents, not pictures; name an .npz file");
  if (!layout.is_latent && layout.shape.channels != 1 && layout.shape.channels != 3)
    throw UsageError("--output ", output, ": pictures have 1 or 3 channels, but the model's have ",
                     layout.shape.channels);
  if (grid && !fits(grid_size_of(request), layout.shape))
    throw UsageError("--output ", output, ": ", request.count,
                     " pictures do not fit in one grid; reduce the number, or name a folder or an .npz file");
  const fs::path folder = output.parent_path();
  if ((npz || grid) && !folder.empty() && path_kind(folder) != PathKind::kDirectory)
    throw UsageError("--output ", output, ": there is no folder ", folder, "; create it");
  if (!npz && !grid && path_kind(output) != PathKind::kNothing)
    throw UsageError("--output ", output, ": already exists; name a new folder");
}

void write_pictures(const fs::path& output, const inference::PictureRequest& request,
                    const data::ImageLayout& layout, inference::PictureSampler& sampler) {
  if (output.extension() == ".npz") {
    write_file_atomically(output, [&](OutputFile& file) { write_npz(file, request, layout, sampler); });
  } else if (output.extension() == ".png") {
    write_file_atomically(output, [&](OutputFile& file) {
      PictureGrid grid(request, layout);
      while (const auto batch = sampler.next()) grid.add(*batch);
      file.write(grid.encode());
    });
  } else {
    write_directory_atomically(output, [&](const fs::path& folder) { write_folder(folder, sampler); });
  }
}

PictureGrid::PictureGrid(const inference::PictureRequest& request, const data::ImageLayout& layout)
    : columns_(grid_size_of(request).columns) {
  if (request.text_NLS.defined()) {
    for (int64_t i = 0; i < request.text_NLS.size(0); ++i) labels_.push_back("text " + std::to_string(i));
  } else {
    for (const int64_t label : request.classes) labels_.push_back(class_name(layout, label));
  }
}

void PictureGrid::add(const inference::PictureBatch& pictures) {
  int64_t index = pictures.first;
  for (data::Picture& picture : to_pictures(pictures.x0_BCHW)) {
    const bool labeled = !labels_.empty();
    const auto j = static_cast<size_t>(index++);
    const size_t row = labeled ? j % labels_.size() : j / static_cast<size_t>(columns_);
    if (rows_.size() <= row) rows_.resize(row + 1);
    rows_[row].push_back({std::move(picture), labeled ? labels_[row] : ""});
  }
}

}  // namespace dtopp::eval
