#include "dtopp/base/safetensors.h"

#include <bit>
#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/json.h"

namespace dtopp {
namespace {

constexpr std::array<std::pair<std::string_view, uint64_t>, 17> kDtypeBytes = {{{"F64", 8},
                                                                                {"F32", 4},
                                                                                {"F16", 2},
                                                                                {"BF16", 2},
                                                                                {"F8_E4M3", 1},
                                                                                {"F8_E5M2", 1},
                                                                                {"F8_E8M0", 1},
                                                                                {"I64", 8},
                                                                                {"I32", 4},
                                                                                {"I16", 2},
                                                                                {"I8", 1},
                                                                                {"U64", 8},
                                                                                {"U32", 4},
                                                                                {"U16", 2},
                                                                                {"U8", 1},
                                                                                {"BOOL", 1},
                                                                                {"C64", 8}}};

using nlohmann::json;

struct Entry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Accepts exactly the schema of the header while the parser runs. Memory stays within a small multiple of the
// header, and nesting is bounded. Each handler returns false and sets `cause` at the first violation.
class HeaderHandler : public json::json_sax_t {
 public:
  std::vector<Entry> entries;
  std::string cause;

  bool null() override { return refuse("unexpected null"); }
  bool boolean(bool) override { return refuse("unexpected boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is not an integer");
  }
  bool binary(binary_t&) override { return refuse("unexpected binary value"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return refuse("unexpected number");
    if (key_ == "data_offsets") {
      if (entry().offsets.size() == 2) return refuse("more than two data_offsets");
      entry().offsets.push_back(value);
      return true;
    }
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) return refuse("a dimension out of range");
    entry().shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ != 2 || in_array_) return refuse("unexpected string");
    if (in_metadata_) return true;
    if (key_ != "dtype") return refuse("a string for " + key_);
    entry().dtype = std::move(text);
    return true;
  }

  bool start_object(size_t) override {
    if (depth_ == 2 || in_array_) return refuse("unexpected object");
    ++depth_;
    return true;
  }

  bool key(string_t& text) override {
    if (depth_ == 1) return name(text);
    if (in_metadata_) return true;
    key_ = text;
    bool Entry::*const seen = text == "dtype"          ? &Entry::has_dtype
                              : text == "shape"        ? &Entry::has_shape
                              : text == "data_offsets" ? &Entry::has_offsets
                                                       : nullptr;
    if (!seen) return refuse("unknown key \"" + text + "\"");
    if (std::exchange(entry().*seen, true)) return refuse(text + " twice");
    return true;
  }

  bool end_object() override {
    const bool closes_entry = depth_-- == 2 && !in_metadata_;
    if (closes_entry && !(entry().has_dtype && entry().has_shape && entry().offsets.size() == 2))
      return refuse("lacks dtype, shape or two data_offsets");
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || key_ == "dtype") return refuse("unexpected array");
    return in_array_ = true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return refuse("not JSON at byte " + std::to_string(position + sizeof(uint64_t)));
  }

 private:
  Entry& entry() { return entries.back(); }

  bool name(const std::string& text) {
    in_metadata_ = text == "__metadata__";
    if (in_metadata_) return !std::exchange(has_metadata_, true) || refuse("__metadata__ twice");
    entries.push_back({.name = text, .dtype = {}, .shape = {}, .offsets = {}});
    return true;
  }

  bool refuse(const std::string& what) {
    cause = depth_ == 2 && !in_metadata_ ? "tensor \"" + entry().name + "\": " + what : what;
    return false;
  }

  int depth_ = 0;  // 1: tensor names, 2: inside an entry
  bool in_metadata_ = false, has_metadata_ = false, in_array_ = false;
  std::string key_;
};

std::vector<Entry> parse_header(std::string_view header, const ByteReader& reader) {
  if (!header.starts_with('{')) reader.fail("the header does not begin with {; not a safetensors file");
  // The JSON parser treats a NUL as the end of its input.
  if (header.find('\0') != std::string_view::npos) reader.fail("the header holds a NUL byte");
  HeaderHandler handler;
  if (!json::sax_parse(header.begin(), header.end(), &handler)) reader.fail("the header: ", handler.cause);
  // A stable sort, because an empty tensor has the same offset as the next tensor.
  std::ranges::stable_sort(handler.entries, {}, &Entry::offsets);
  return std::move(handler.entries);
}

// Returns the place of a tensor whose data must begin at `begin` of the file.
TensorPlace place_of(Entry& entry, const fs::path& path, uint64_t data_start, uint64_t begin_in_file,
                     uint64_t file_bytes) {
  const auto fail = [&](const std::string& cause) {
    throw DataError(path, ": byte ", begin_in_file, ": tensor \"", entry.name, "\": ", cause);
  };
  const uint64_t element = element_bytes(entry.dtype);
  if (element == 0) fail("unknown dtype \"" + entry.dtype + "\"");
  const auto bytes = tensor_bytes(element, entry.shape);
  if (!bytes) fail("its size overflows");
  const uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin != begin_in_file - data_start)
    fail("begins with a gap or an overlap, at " + std::to_string(begin));
  if (end < begin || end - begin != *bytes)
    fail("data_offsets do not fit its " + std::to_string(*bytes) + " bytes");
  if (*bytes > file_bytes - begin_in_file)
    fail("needs " + std::to_string(*bytes) + " bytes, has " + std::to_string(file_bytes - begin_in_file));
  return {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), begin_in_file, *bytes};
}

constexpr uint64_t kAlignment = 64;

void write_tensors(OutputFile& file, const std::vector<TensorSource>& tensors) {
  for (const auto& tensor : tensors) {
    uint64_t count = 0;
    tensor.read(0, tensor.size, [&](std::span<const std::byte> bytes) {
      count += bytes.size();
      file.write(bytes);
    });
    if (count != tensor.size)
      throw DataError(file.path(), ": tensor \"", tensor.name, "\": its size in bytes is not ", tensor.size);
  }
}

// Shifts exponent and fraction into place; the factor 2^112 corrects the exponent bias, also for subnormal
// numbers.
float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t rest = static_cast<uint32_t>(half & 0x7fffU) << 13;
  if ((half & 0x7c00U) == 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | rest);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112F));
}

float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

template <float (*kConvert)(uint16_t)>
void widen_each(std::span<const std::byte> bytes, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + sizeof(bits) * i, sizeof(bits));
    out[i] = kConvert(bits);
  }
}

template <class Word>
bool none_has_all(Word exponent, std::span<const std::byte> bytes) {
  bool any = false;
  for (size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + sizeof(Word) * i, sizeof(Word));
    any |= (word & exponent) == exponent;
  }
  return !any;
}

}  // namespace

uint64_t element_bytes(std::string_view dtype) {
  const auto found = std::ranges::find(kDtypeBytes, dtype, &std::pair<std::string_view, uint64_t>::first);
  return found == kDtypeBytes.end() ? 0 : found->second;
}

std::optional<uint64_t> tensor_bytes(uint64_t element, const std::vector<int64_t>& shape) {
  uint64_t bytes = element;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) return std::nullopt;
  return bytes;
}

uint64_t size_of(FloatType type) { return type == FloatType::kF32 ? 4 : 2; }

void widen(FloatType type, std::span<const std::byte> bytes, std::span<float> out) {
  if (bytes.size() != out.size() * size_of(type)) throw std::invalid_argument("widen: sizes differ");
  if (type == FloatType::kF32) {
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  } else if (type == FloatType::kF16) {
    widen_each<from_half>(bytes, out);
  } else {
    widen_each<from_bfloat16>(bytes, out);
  }
}

bool all_finite(FloatType type, std::span<const std::byte> bytes) {
  if (type == FloatType::kF32) return none_has_all<uint32_t>(0x7f800000U, bytes);
  return none_has_all<uint16_t>(type == FloatType::kF16 ? 0x7c00U : 0x7f80U, bytes);
}

std::vector<TensorPlace> parse_safetensors(std::span<const std::byte> beginning, uint64_t file_bytes,
                                           const fs::path& path) {
  ByteReader reader(beginning, path.string());
  const auto header_bytes = reader.read<uint64_t>();
  if (header_bytes > kMaxHeaderBytes)
    reader.fail("a header of ", header_bytes, " bytes; not a safetensors file");
  const auto header = reader.take_text(header_bytes);
  const uint64_t data_start = reader.offset();
  uint64_t end = data_start;
  std::vector<TensorPlace> places;
  std::set<std::string_view> names;
  auto entries = parse_header(header, reader);
  places.reserve(entries.size());
  for (auto& entry : entries) {
    places.push_back(place_of(entry, path, data_start, end, file_bytes));
    end += places.back().size;
    if (!names.insert(places.back().name).second)
      reader.fail("tensor \"", places.back().name, "\": appears twice");
  }
  if (end != file_bytes)
    throw DataError(path, ": byte ", end, ": ", file_bytes - end, " bytes that belong to no tensor");
  return places;
}

SafetensorsReader::SafetensorsReader(const fs::path& path) : file_(open_regular(path)) {
  const uint64_t file_bytes = file_.size();
  std::vector<std::byte> beginning(std::min<uint64_t>(file_bytes, sizeof(uint64_t)));
  file_.read_at(0, beginning);
  const auto header_bytes = ByteReader(beginning, path.string()).read<uint64_t>();
  beginning.resize(std::min(file_bytes, sizeof(uint64_t) + std::min(header_bytes, kMaxHeaderBytes)));
  file_.read_at(0, beginning);
  for (TensorPlace& place : parse_safetensors(beginning, file_bytes, path))
    tensors_.emplace(place.name, std::move(place));
}

const TensorPlace* SafetensorsReader::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(path) {
  for (TensorPlace& place : parse_safetensors(file_.bytes(), file_.bytes().size(), path)) {
    by_name_.emplace(place.name, tensors_.size());
    tensors_.push_back({std::move(place.name), std::move(place.dtype), std::move(place.shape),
                        file_.bytes().subspan(place.begin, place.size)});
  }
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::string safetensors_head(const fs::path& path, const std::vector<TensorSource>& tensors,
                             const std::map<std::string, std::string>& metadata, uint64_t padded) {
  ordered_json header = ordered_json::object();
  std::set<std::string_view> names;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = tensor_bytes(element_bytes(tensor.dtype), tensor.shape);
    if (bytes != tensor.size || element_bytes(tensor.dtype) == 0 || tensor.name == "__metadata__" ||
        !names.insert(tensor.name).second)
      throw DataError(path, ": tensor \"", tensor.name,
                      "\": its name is taken or its dtype and shape do not fit its bytes");
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.size}}};
    offset += tensor.size;
  }
  std::string head = std::string(sizeof(uint64_t), '\0') + dump_json(header);
  head.append((kAlignment - head.size() % kAlignment) % kAlignment, ' ');
  if (head.size() - sizeof(uint64_t) > kMaxHeaderBytes)
    throw DataError(path, ": too many tensors for one file");
  if (padded > 0 && head.size() > padded) throw DataError(path, ": too many tensors");
  head.resize(std::max(head.size(), padded), ' ');
  const uint64_t size = head.size() - sizeof(size);
  std::memcpy(head.data(), &size, sizeof(size));
  return head;
}

void write_safetensors(OutputFile& file, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  file.write(safetensors_head(file.path(), tensors, metadata));
  write_tensors(file, tensors);
}

uint64_t write_safetensors(const fs::path& path, const std::vector<TensorSource>& tensors,
                           const std::map<std::string, std::string>& metadata, Hasher* hasher) {
  const std::string head = safetensors_head(path, tensors, metadata);
  OutputFile file(path, hasher);
  file.write(head);
  write_tensors(file, tensors);
  file.sync_and_close();
  return file.size();
}

}  // namespace dtopp
