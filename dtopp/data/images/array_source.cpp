
#include "dtopp/base/byte_reader.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/data/files/npy.h"
#include "dtopp/data/images/image_source.h"

namespace dtopp::data {
namespace {

// The name in safetensors of a dtype in the header of a .npy file.
std::string dtype_of(std::string_view descr, const ByteReader& reader) {
  constexpr std::array<std::pair<std::string_view, const char*>, 3> kDtypes{
      {{"'<f4'", "F32"}, {"'<f2'", "F16"}, {"'|u1'", "U8"}}};
  for (const auto& [known, name] : kDtypes)
    if (descr == known) return name;
  reader.fail("dtype ", descr.substr(0, 40), " is not supported; save float32, float16 or uint8");
}

// Returns the place of the array in a .npy file of `file_bytes`; `beginning` holds its header.
TensorPlace read_npy_place(std::span<const std::byte> beginning, uint64_t file_bytes,
                           const std::string& what) {
  ByteReader reader(beginning, what);
  if (!begins_as_npy(beginning)) reader.fail("not a .npy file");
  const NpyHeader header = read_npy_header(reader);
  const std::string dtype = dtype_of(header.descr, reader);
  if (header.fortran_order) reader.fail("is in Fortran order; save it in C order");
  const uint64_t begin = reader.offset();
  require_npy_bytes(reader, header.shape, element_bytes(dtype), file_bytes - begin);
  return {"", dtype, header.shape, begin, file_bytes - begin};
}

// Reads samples as rows of the tensors in one .npy or .safetensors file.
class ArraySource : public ImageSource {
 public:
  explicit ArraySource(const fs::path& path) : path_(path) {
    if (path.extension() == ".npy") {
      npy_.emplace(open_regular(path));
      add_samples(read_npy_place(read_npy_beginning(*npy_), npy_->size(), path.string()));
    } else {
      safetensors_.emplace(path);
      add_tensors();
    }
  }

  std::optional<RawSample> next(bool load) override {
    if (next_ == count_) return std::nullopt;
    RawSample sample;
    sample.name = path_.string() + ": sample " + std::to_string(next_);
    if (load) read_rows(sample);
    if (labels_) set_label(sample);
    ++next_;
    return sample;
  }

 private:
  [[noreturn]] void fail(const std::string& cause) const { throw DataError(path_, ": ", cause); }

  void add_samples(const TensorPlace& samples) {
    if (samples.shape.size() != 4) fail("is not an array of samples [N, C, H, W]");
    count_ = samples.shape[0];
    if (count_ > 0 && samples.size == 0) fail("holds samples without numbers");
    samples_ = samples;
  }

  void add_tensors() {
    const TensorPlace* images = safetensors_->find("images");
    const TensorPlace* latents = safetensors_->find("latents");
    if (!images == !latents) fail("needs a tensor \"latents\" or \"images\" [N, C, H, W]");
    add_samples(images ? *images : *latents);
    flipped_ = find("latents_flip");
    if (flipped_ && (images || flipped_->shape != samples_->shape || flipped_->dtype != samples_->dtype))
      fail("latents_flip must have the shape and the dtype of latents");
    labels_ = find("labels");
    if (labels_ && (labels_->shape.size() != 1 || (labels_->dtype != "I64" && labels_->dtype != "I32")))
      fail("labels must be I64 or I32 [N]");
    text_ = find("text");
    if (text_ && text_->shape.size() != 3) fail("text must be [N, tokens, size]");
  }

  std::optional<TensorPlace> find(const std::string& name) const {
    const TensorPlace* tensor = safetensors_->find(name);
    if (!tensor) return std::nullopt;
    if (tensor->shape.empty() || tensor->shape[0] != count_)
      fail(name + " must hold " + std::to_string(count_) + " samples");
    return *tensor;
  }

  uint64_t row_bytes(const std::optional<TensorPlace>& all) const {
    return all ? all->size / static_cast<uint64_t>(count_) : 0;
  }

  // Reads the next row of `all`, if there is such a tensor, into the beginning of `rows`.
  std::optional<TensorView> read_row(const std::optional<TensorPlace>& all,
                                     std::span<std::byte>& rows) const {
    if (!all) return std::nullopt;
    const auto row = rows.first(row_bytes(all));
    rows = rows.subspan(row.size());
    (npy_ ? *npy_ : safetensors_->file())
        .read_at(all->begin + static_cast<uint64_t>(next_) * row.size(), row);
    return TensorView{all->name, all->dtype, {all->shape.begin() + 1, all->shape.end()}, row};
  }

  void read_rows(RawSample& sample) const {
    const uint64_t bytes = row_bytes(samples_) + row_bytes(flipped_) + row_bytes(text_);
    if (bytes > kMaxMemberBytes)
      fail("holds samples of " + std::to_string(bytes) + " bytes, more than the " +
           std::to_string(kMaxMemberBytes) + " allowed");
    sample.row_bytes = bytes;
    sample.rows = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::span<std::byte> rows(sample.rows.get(), bytes);
    sample.image = read_row(samples_, rows);
    sample.flipped = read_row(flipped_, rows);
    sample.text = read_row(text_, rows);
  }

  void set_label(RawSample& sample) const {
    std::array<std::byte, sizeof(int64_t)> bytes;
    std::span<std::byte> rest = bytes;
    ByteReader label(read_row(labels_, rest)->bytes, sample.name);
    sample.label = labels_->dtype == "I64" ? label.read<int64_t>() : label.read<int32_t>();
    if (sample.label < 0 || sample.label >= kMaxClasses)
      sample.cause =
          "label " + std::to_string(sample.label) + " is not from 0 to " + std::to_string(kMaxClasses - 1);
  }

  fs::path path_;
  std::optional<Descriptor> npy_;
  std::optional<SafetensorsReader> safetensors_;
  std::optional<TensorPlace> samples_, flipped_, labels_, text_;
  int64_t count_ = 0, next_ = 0;
};

}  // namespace

TensorView read_npy_array(std::span<const std::byte> file, const std::string& what) {
  TensorPlace place = read_npy_place(file, file.size(), what);
  return {"", std::move(place.dtype), std::move(place.shape), file.subspan(place.begin)};
}

std::unique_ptr<ImageSource> open_image_array(const fs::path& path) {
  return std::make_unique<ArraySource>(path);
}

}  // namespace dtopp::data
