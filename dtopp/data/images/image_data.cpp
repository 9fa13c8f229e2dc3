#include "dtopp/data/images/image_data.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/data/images/image_shard.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

// The facts are on the heap because the shards refer to them.
struct ImageFolder {
  fs::path path;
  std::unique_ptr<ImageFacts> facts;
  std::string hash;
  std::vector<ImageShard> shards;
};

ImageFolder open_folder(const fs::path& path, Verify verify) {
  if (!is_there(path))
    throw DataError(path.string() + ": no such folder; make it (dtopp prepare images SOURCES --output " +
                    path.string() + ")");
  require_finished(path, image_folder_kind());
  const Manifest manifest = read_verified_manifest(path, kImageDataFormat, verify);
  ImageFolder folder{path,
                     std::make_unique<ImageFacts>(read_image_facts(manifest, path / kManifestName)),
                     hash_of(manifest.files),
                     {}};
  uint64_t images = 0;
  for (const auto& [name, unused] : manifest.files) {  // in the order of their names
    folder.shards.emplace_back(path / name, *folder.facts);
    images += folder.shards.back().images();
  }
  for (const fs::path& file : list_directory(path)) {
    if (file.extension() == ".safetensors" && !manifest.files.contains(file.filename().string()))
      throw DataError(file.string() + ": not in this folder's manifest.json; move it elsewhere");
  }
  if (images != folder.facts->images)
    throw DataError((path / kManifestName).string() + ": counts " + std::to_string(folder.facts->images) +
                    " images, but the files hold " + std::to_string(images));
  if (images == 0) throw DataError(path.string() + ": holds no images");
  return folder;
}

ImageLayout layout_of(const ImageFacts& facts) {
  ImageLayout layout;
  layout.is_latent = facts.kind == ImageKind::kLatents;
  layout.shape = facts.shape;
  layout.classes = facts.classes;
  layout.has_flipped = facts.has_flipped;
  layout.text_size = facts.text_size;
  layout.text_length = facts.text_length;
  if (!facts.job.scale.empty()) layout.scale = facts.job.scale;
  if (!facts.job.shift.empty()) layout.shift = facts.job.shift;
  return layout;
}

std::string describe_shape(const ImageLayout& layout) {
  const ImageShape& shape = layout.shape;
  return std::string(layout.is_latent ? "latents" : "pixels") + " of " + std::to_string(shape.channels) +
         " x " + std::to_string(shape.height) + " x " + std::to_string(shape.width);
}

}  // namespace

struct ImageData::Impl {
  std::vector<ImageFolder> folders;
  std::vector<const ImageShard*> shards;  // of all folders, in order
  std::vector<uint64_t> first_image;      // index of each shard's first image, then the total
  ImageLayout layout;
  std::string content_hash;

  // Returns the shard of a sample and the sample's index in the shard.
  std::pair<const ImageShard&, uint64_t> find(uint64_t index) const {
    if (index >= first_image.back())
      throw std::out_of_range("ImageData: sample " + std::to_string(index) + " of " +
                              std::to_string(first_image.back()));
    const auto after = std::upper_bound(first_image.begin(), first_image.end(), index);
    const auto shard = static_cast<size_t>(after - first_image.begin()) - 1;
    return {*shards[shard], index - first_image[shard]};
  }
};

ImageData ImageData::open(const std::vector<fs::path>& folders, Verify verify) {
  if (folders.empty()) throw UsageError("no image folders to read");
  auto impl = std::make_unique<Impl>();
  std::string hashes;
  impl->first_image.push_back(0);
  for (const fs::path& path : folders) {
    impl->folders.push_back(open_folder(path, verify));
    const ImageFolder& folder = impl->folders.back();
    const ImageLayout layout = layout_of(*folder.facts);
    if (impl->folders.size() == 1) impl->layout = layout;
    require_alike(impl->layout, folders.front().string(), layout, path.string());
    impl->layout.text_length = std::max(impl->layout.text_length, layout.text_length);
    hashes += folder.hash;
  }
  for (const ImageFolder& folder : impl->folders) {
    for (const ImageShard& shard : folder.shards) {
      impl->shards.push_back(&shard);
      impl->first_image.push_back(impl->first_image.back() + shard.images());
    }
  }
  impl->content_hash = hash_bytes(std::as_bytes(std::span(hashes)));
  return ImageData(std::move(impl));
}

ImageData::ImageData(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ImageData::ImageData(ImageData&&) noexcept = default;
ImageData::~ImageData() = default;

uint64_t ImageData::size() const { return impl_->first_image.back(); }
std::vector<uint64_t> ImageData::folder_sizes() const {
  std::vector<uint64_t> sizes;
  for (const ImageFolder& folder : impl_->folders) sizes.push_back(folder.facts->images);
  return sizes;
}
const ImageLayout& ImageData::layout() const { return impl_->layout; }
const std::string& ImageData::content_hash() const { return impl_->content_hash; }

int64_t ImageData::label(uint64_t index) const {
  const auto [shard, index_in_shard] = impl_->find(index);
  return shard.label(index_in_shard);
}

void ImageData::pixels(uint64_t index, std::span<uint8_t> out) const {
  if (layout().is_latent || out.size() != layout().shape.elements())
    throw std::invalid_argument("ImageData::pixels: samples must be pictures, and out must hold one");
  const auto [shard, index_in_shard] = impl_->find(index);
  shard.pixels(index_in_shard, out);
}

void ImageData::latent(uint64_t index, bool flipped, std::span<float> out) const {
  if (!layout().is_latent || (flipped && !layout().has_flipped) || out.size() != layout().shape.elements())
    throw std::invalid_argument("ImageData::latent: samples must be latents, and out must hold one");
  const auto [shard, index_in_shard] = impl_->find(index);
  shard.latent(index_in_shard, flipped, out);
}

int64_t ImageData::text(uint64_t index, std::span<float> out) const {
  if (out.size() < static_cast<uint64_t>(layout().text_length * layout().text_size))
    throw std::invalid_argument("ImageData::text: out must hold text_length * text_size numbers");
  const auto [shard, index_in_shard] = impl_->find(index);
  return shard.text(index_in_shard, out);
}

void require_alike(const ImageLayout& layout, const std::string& name, const ImageLayout& other,
                   const std::string& other_name) {
  const auto refuse = [&](const std::string& here, const std::string& there) {
    throw UsageError(other_name + ": has " + there + ", " + name + " has " + here +
                     "; prepare them in the same way");
  };
  if (describe_shape(layout) != describe_shape(other)) refuse(describe_shape(layout), describe_shape(other));
  if (layout.classes != other.classes) {
    const auto count = [](const ImageLayout& of) { return std::to_string(of.classes.size()) + " classes"; };
    const bool same_count = layout.classes.size() == other.classes.size();
    refuse(same_count ? "different ones" : count(layout),
           same_count ? "classes with other names" : count(other));
  }
  if (layout.text_size != other.text_size)
    refuse("text of size " + std::to_string(layout.text_size),
           "text of size " + std::to_string(other.text_size));
  if (layout.has_flipped != other.has_flipped)
    refuse(layout.has_flipped ? "flipped latents" : "no flipped latents",
           other.has_flipped ? "flipped latents" : "no flipped latents");
  if (layout.scale != other.scale || layout.shift != other.shift)
    refuse("a different one", "another scale or shift");
}

}  // namespace dtopp::data
