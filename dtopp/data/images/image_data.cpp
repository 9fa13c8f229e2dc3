#include "dtopp/data/images/image_data.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/data/images/picture.h"

namespace dtopp::data {
ImageShard::ImageShard(const fs::path& path, std::shared_ptr<const ImageFacts> all_facts)
    : facts_(std::move(all_facts)), path_(path), file_(path) {
  const ImageFacts& facts = *facts_;
  const std::vector<int64_t> shape = {facts.shape.channels, facts.shape.height, facts.shape.width};
  switch (facts.kind) {
    case ImageKind::kPixels:
      samples_ = of_samples("images", "U8", shape);
      break;
    case ImageKind::kEncoded:
      samples_ = &tensor("bytes", "U8");
      offsets_ = offsets_of("offsets");
      break;
    case ImageKind::kLatents:
      samples_ = of_samples("latents", enum_name(facts.latent_type), shape);
      if (facts.has_flipped) flipped_ = of_samples("latents_flip", enum_name(facts.latent_type), shape);
  }
  if (!facts.classes.empty()) labels_ = of_samples("labels", "I64", {});
  if (facts.text_size == 0) return;
  text_ = &tensor("text", enum_name(facts.text_type));
  if (text_->shape.size() != 2 || text_->shape[1] != facts.text_size)
    fail("text must be [tokens, " + std::to_string(facts.text_size) + "]");
  text_offsets_ = offsets_of("text_offsets");
}

const TensorPlace& ImageShard::tensor(const std::string& name, const std::string& dtype) const {
  const TensorPlace* found = file_.find(name);
  if (!found) fail("lacks the tensor \"" + name + "\"");
  if (found->dtype != dtype) fail(name + " is " + found->dtype + ", not " + dtype);
  return *found;
}

void ImageShard::count(uint64_t images) {
  if (images_ && images != *images_)
    fail("its tensors hold " + std::to_string(*images_) + " and " + std::to_string(images) + " samples");
  images_ = images;
}

const TensorPlace* ImageShard::of_samples(const std::string& name, const std::string& dtype,
                                          const std::vector<int64_t>& rest) {
  const TensorPlace& found = tensor(name, dtype);
  if (found.shape.size() != rest.size() + 1 || !std::equal(rest.begin(), rest.end(), found.shape.begin() + 1))
    fail(name + " has another shape than in the manifest");
  count(static_cast<uint64_t>(found.shape[0]));
  return &found;
}

const TensorPlace* ImageShard::offsets_of(const std::string& name) {
  const TensorPlace& found = tensor(name, "I64");
  if (found.shape.size() != 1 || found.shape[0] < 1) fail(name + " must be [samples + 1]");
  count(static_cast<uint64_t>(found.shape[0]) - 1);
  return &found;
}

int64_t ImageShard::integer(const TensorPlace& integers, uint64_t index) const {
  int64_t value = 0;
  file_.read(integers, index * sizeof(value), std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::vector<std::byte> ImageShard::read(const TensorPlace& tensor, uint64_t offset, uint64_t size) const {
  std::vector<std::byte> bytes(size);
  file_.read(tensor, offset, bytes);
  return bytes;
}

std::vector<std::byte> ImageShard::piece(const TensorPlace& rows, const TensorPlace& offsets, uint64_t size,
                                         uint64_t index) const {
  const int64_t begin = integer(offsets, index), end = integer(offsets, index + 1);
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > rows.size / size)
    fail(index, "its offsets lie outside the data");
  return read(rows, static_cast<uint64_t>(begin) * size, static_cast<uint64_t>(end - begin) * size);
}

int64_t ImageShard::label(uint64_t index) const {
  if (facts_->classes.empty()) return -1;
  const int64_t label = integer(*labels_, index);
  if (label < 0 || label >= std::ssize(facts_->classes))
    fail(index, "label " + std::to_string(label) + " is none of the " +
                    std::to_string(facts_->classes.size()) + " classes");
  return label;
}

void ImageShard::pixels(uint64_t index, std::span<uint8_t> out) const {
  if (facts_->kind == ImageKind::kPixels) {
    file_.read(*samples_, index * out.size(), std::as_writable_bytes(out));
    return;
  }
  const std::vector<std::byte> file = piece(*samples_, *offsets_, 1, index);
  const ImageShape& shape = facts_->shape;
  try {
    const Picture picture = decode_picture(file, static_cast<int>(shape.channels)).picture;
    if (ImageShape{picture.channels, picture.height, picture.width} != shape)
      throw DataError("has another size than in the manifest");
    to_planes(picture, out);
  } catch (const DataError& error) {
    fail(index, error.what());
  }
}

void ImageShard::latent(uint64_t index, bool flipped, std::span<float> out) const {
  const uint64_t size = out.size() * size_of(facts_->latent_type);
  widen(facts_->latent_type, read(flipped ? *flipped_ : *samples_, index * size, size), out);
}

int64_t ImageShard::text(uint64_t index, std::span<float> out) const {
  if (facts_->text_size == 0) return 0;
  const uint64_t row = static_cast<uint64_t>(facts_->text_size) * size_of(facts_->text_type);
  const std::vector<std::byte> bytes = piece(*text_, *text_offsets_, row, index);
  const auto length = static_cast<int64_t>(bytes.size() / row);
  if (length > facts_->text_length) fail(index, "its text is longer than the manifest allows");
  widen(facts_->text_type, bytes, out.first(static_cast<size_t>(length * facts_->text_size)));
  return length;
}

void ImageShard::fail(const std::string& cause) const { throw DataError(path_, ": ", cause); }

void ImageShard::fail(uint64_t index, const std::string& cause) const {
  fail("sample " + std::to_string(index) + ": " + cause);
}

namespace {

struct ImageFolder {
  std::shared_ptr<const ImageFacts> facts;
  std::string hash;
  std::vector<ImageShard> shards;
};

ImageFolder open_folder(const fs::path& path, Verify verify) {
  if (!is_there(path))
    throw DataError(path, ": no such folder; make it (dtopp prepare images SOURCES --output ", path, ")");
  require_finished(path, image_folder_kind());
  const Manifest manifest = read_verified_manifest(path, kImageDataFormat, verify);
  ImageFolder folder{std::make_shared<ImageFacts>(read_image_facts(manifest, path / kManifestName)),
                     hash_of(manifest.files),
                     {}};
  uint64_t images = 0;
  for (const auto& [name, unused] : manifest.files) {  // in the order of their names
    folder.shards.emplace_back(path / name, folder.facts);
    images += folder.shards.back().images();
  }
  for (const fs::path& file : list_directory(path))
    if (file.extension() == ".safetensors" && !manifest.files.contains(file.filename().string()))
      throw DataError(file, ": not in this folder's manifest.json; move it elsewhere");
  if (images != folder.facts->images)
    throw DataError((path / kManifestName).string(), ": counts ", folder.facts->images,
                    " images, but the files hold ", images);
  if (images == 0) throw DataError(path, ": holds no images");
  return folder;
}

ImageLayout layout_of(const ImageFacts& facts) {
  ImageLayout layout{facts.kind == ImageKind::kLatents,
                     facts.shape,
                     facts.classes,
                     facts.has_flipped,
                     facts.text_size,
                     facts.text_length};
  if (!facts.job.scale.empty()) layout.scale = facts.job.scale;
  if (!facts.job.shift.empty()) layout.shift = facts.job.shift;
  return layout;
}

std::string describe_shape(const ImageLayout& layout) {
  const ImageShape& shape = layout.shape;
  return std::string(layout.is_latent ? "latents" : "pixels") + " of " + std::to_string(shape.channels) +
         " x " + std::to_string(shape.height) + " x " + std::to_string(shape.width);
}

constexpr char kPixels[] = "pixels", kLatents[] = "latents";
// Limits that keep products of sizes from overflowing.
constexpr int64_t kLargestSide = int64_t{1} << 16;
constexpr int64_t kLargestText = int64_t{1} << 24;

ImageShape read_shape(const JsonFields& fields) {
  const std::vector<double> sizes = fields.numbers("shape");
  if (sizes.size() != 3) fields.fail("shape", "must be [channels, height, width]");
  for (const double size : sizes)
    if (!(size >= 1 && size <= static_cast<double>(kLargestSide)) || size != static_cast<int64_t>(size))
      fields.fail("shape", "a size is not a whole number from 1 to ", kLargestSide);
  return {static_cast<int64_t>(sizes[0]), static_cast<int64_t>(sizes[1]), static_cast<int64_t>(sizes[2])};
}

// Reads one number, or one per channel.
std::vector<double> of_channels(const JsonFields& fields, const std::string& key, int64_t channels) {
  std::vector<double> numbers = fields.numbers(key);
  if (numbers.size() != 1 && numbers.size() != static_cast<size_t>(channels))
    fields.fail(key, "must be one number or one per channel");
  return numbers;
}

// The value that the member names. `names` lists all names in an error.
template <class Enum>
Enum named(const JsonFields& object, const std::string& key, const char* names) {
  const std::string name = object.text(key);
  const auto value = enum_named<Enum>(name);
  if (!value) object.fail(key, "\"", name, "\" is not ", names);
  return *value;
}

FloatType float_type(const JsonFields& object) {
  return named<FloatType>(object, "dtype", "F32, F16 or BF16");
}

ImageJob read_job(const JsonFields& about) {
  ImageJob job{about.integer("size", 0, kLargestSide), about.integer("channels", 1, kLargestSide), {}, {}};
  if (about.has("scale")) job.scale = about.numbers("scale");
  if (about.has("shift")) job.shift = about.numbers("shift");
  return job;
}

}  // namespace

FolderKind image_folder_kind() {
  FolderKind kind{kImageDataFormat, kImageRecordFormat, {}, {}, "--"};
  for (const char* name :
       {"images", "bytes", "offsets", "latents", "latents_flip", "labels", "text", "text_offsets"})
    kind.unlisted.push_back(std::string(kStreamPrefix) + name);
  return kind;
}

ordered_json to_json(const ImageJob& job) {
  ordered_json settings = {{"size", job.size}, {"channels", job.channels}};
  if (!job.scale.empty()) settings["scale"] = job.scale;
  if (!job.shift.empty()) settings["shift"] = job.shift;
  return settings;
}

ordered_json to_json(const ImageFacts& facts) {
  ordered_json about = {{"kind", enum_name(facts.kind)},
                        {"images", facts.images},
                        {"shape", {facts.shape.channels, facts.shape.height, facts.shape.width}},
                        {"classes", facts.classes}};
  if (facts.kind == ImageKind::kLatents)
    about["latents"] = {{"dtype", enum_name(facts.latent_type)}, {"flipped", facts.has_flipped ? 1 : 0}};
  if (facts.text_size > 0)
    about["text"] = {
        {"dtype", enum_name(facts.text_type)}, {"size", facts.text_size}, {"longest", facts.text_length}};
  ordered_json skipped = ordered_json::array();
  for (const SkippedImage& image : facts.skipped)
    skipped.push_back({{"name", image.name}, {"cause", image.cause}});
  about["skipped"] = std::move(skipped);
  return about;
}

ImageFacts read_image_facts(const Manifest& manifest, const fs::path& path) {
  const JsonFields about(manifest.about, path.string());
  ImageFacts facts;
  facts.job = read_job(about.object("job"));
  facts.kind = named<ImageKind>(about, "kind", "pixels, encoded or latents");
  facts.images = about.count("images");
  const std::vector<double> shape = about.numbers("shape");
  const auto is_side = [](double side) { return side >= 0 && side <= kLargestSide; };
  if (shape.size() != 3 || !std::ranges::all_of(shape, is_side))
    about.fail("shape", "must be channels, height and width");
  facts.shape = {static_cast<int64_t>(shape[0]), static_cast<int64_t>(shape[1]),
                 static_cast<int64_t>(shape[2])};
  facts.classes = about.texts("classes");
  if (facts.kind == ImageKind::kLatents) {
    const JsonFields latents = about.object("latents");
    facts.latent_type = float_type(latents);
    facts.has_flipped = latents.integer("flipped", 0, 1) != 0;
  }
  if (about.has("text")) {
    const JsonFields text = about.object("text");
    facts.text_type = float_type(text);
    facts.text_size = text.integer("size", 1, kLargestText);
    facts.text_length = text.integer("longest", 0, kLargestText);
  }
  for (const JsonFields& image : about.objects("skipped"))
    facts.skipped.push_back({image.text("name"), image.text("cause")});
  return facts;
}

ImageData ImageData::open(const std::vector<fs::path>& folders, Verify verify) {
  if (folders.empty()) throw UsageError("no image folders to read");
  ImageData data;
  std::string hashes;
  for (const fs::path& path : folders) {
    ImageFolder folder = open_folder(path, verify);
    const ImageLayout layout = layout_of(*folder.facts);
    if (data.folder_sizes_.empty()) data.layout_ = layout;
    data.folder_sizes_.push_back(folder.facts->images);
    require_alike(data.layout_, folders.front().string(), layout, path.string());
    data.layout_.text_length = std::max(data.layout_.text_length, layout.text_length);
    hashes += folder.hash;
    for (ImageShard& shard : folder.shards) {
      data.first_image_.push_back(data.first_image_.back() + shard.images());
      data.shards_.push_back(std::move(shard));
    }
  }
  data.content_hash_ = hash_bytes(hashes);
  return data;
}

std::pair<const ImageShard&, uint64_t> ImageData::find(uint64_t index) const {
  if (index >= size())
    throw std::out_of_range("ImageData: sample " + std::to_string(index) + " of " + std::to_string(size()));
  const auto after = std::upper_bound(first_image_.begin(), first_image_.end(), index);
  const auto shard = static_cast<size_t>(after - first_image_.begin()) - 1;
  return {shards_[shard], index - first_image_[shard]};
}

int64_t ImageData::label(uint64_t index) const {
  const auto [shard, index_in_shard] = find(index);
  return shard.label(index_in_shard);
}

void ImageData::pixels(uint64_t index, std::span<uint8_t> out) const {
  if (layout().is_latent || out.size() != layout().shape.elements())
    throw std::invalid_argument("ImageData::pixels: samples must be pictures, and out must hold one");
  const auto [shard, index_in_shard] = find(index);
  shard.pixels(index_in_shard, out);
}

void ImageData::latent(uint64_t index, bool flipped, std::span<float> out) const {
  if (!layout().is_latent || (flipped && !layout().has_flipped) || out.size() != layout().shape.elements())
    throw std::invalid_argument("ImageData::latent: samples must be latents, and out must hold one");
  const auto [shard, index_in_shard] = find(index);
  shard.latent(index_in_shard, flipped, out);
}

int64_t ImageData::text(uint64_t index, std::span<float> out) const {
  if (out.size() < static_cast<uint64_t>(layout().text_length * layout().text_size))
    throw std::invalid_argument("ImageData::text: out must hold text_length * text_size numbers");
  const auto [shard, index_in_shard] = find(index);
  return shard.text(index_in_shard, out);
}

void require_alike(const ImageLayout& layout, const std::string& name, const ImageLayout& other,
                   const std::string& other_name) {
  const auto refuse = [&](const std::string& here, const std::string& there) {
    throw UsageError(other_name, ": has ", there, ", ", name, " has ", here,
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

std::string format_image_layout(const ImageLayout& layout) {
  const ordered_json json = {{"kind", layout.is_latent ? kLatents : kPixels},
                             {"shape", {layout.shape.channels, layout.shape.height, layout.shape.width}},
                             {"classes", layout.classes},
                             {"text_size", layout.text_size},
                             {"text_length", layout.text_length},
                             {"scale", layout.scale},
                             {"shift", layout.shift}};
  return dump_json(json, 2) + "\n";
}

ImageLayout parse_image_layout(const std::string& text, const std::string& what) {
  const JsonFields fields(text, what);
  ImageLayout layout;
  const std::string kind = fields.text("kind");
  if (kind != kPixels && kind != kLatents) fields.fail("kind", "\"", kind, "\" is not pixels or latents");
  layout.is_latent = kind == kLatents;
  layout.shape = read_shape(fields);
  layout.classes = fields.texts("classes");
  layout.text_size = fields.integer("text_size", 0, kLargestText);
  layout.text_length = fields.integer("text_length", 0, kLargestText);
  layout.scale = of_channels(fields, "scale", layout.shape.channels);
  layout.shift = of_channels(fields, "shift", layout.shape.channels);
  for (const double scale : layout.scale)
    if (scale == 0) fields.fail("scale", "must not be 0");
  return layout;
}

}  // namespace dtopp::data
