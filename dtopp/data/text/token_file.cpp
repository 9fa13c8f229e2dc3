#include "dtopp/data/text/token_file.h"

#include <array>

#include <nlohmann/json.hpp>

#include "dtopp/base/byte_reader.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/json.h"
#include "dtopp/base/stop.h"
#include "dtopp/data/files/npy.h"

namespace dtopp::data {
namespace {

// Widens the ids at the end of `out` in place, from the first to the last: none is overwritten before it is
// read.
template <class T>
void widen_ids(std::span<int64_t> out) {
  const std::byte* const from = std::as_bytes(out).last(out.size() * sizeof(T)).data();
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): scan() checks the sign
  }
}

struct TypeFacts {
  std::string_view npy;  // as NumPy's header names it
  uint8_t megatron;      // the code in an index; 0: none
  uint64_t size;         // bytes per id
  void (*widen)(std::span<int64_t> out);
};

template <class T>
constexpr TypeFacts facts_of(std::string_view npy, uint8_t megatron) {
  return {npy, megatron, sizeof(T), widen_ids<T>};
}

// In the order of TokenType. Megatron's codes 6 and 7 are floating point.
constexpr std::array kTypes = {facts_of<uint8_t>("'|u1'", 1),  facts_of<int8_t>("'|i1'", 2),
                               facts_of<uint16_t>("'<u2'", 8), facts_of<int16_t>("'<i2'", 3),
                               facts_of<uint32_t>("'<u4'", 0), facts_of<int32_t>("'<i4'", 4),
                               facts_of<uint64_t>("'<u8'", 0), facts_of<int64_t>("'<i8'", 5)};

const TypeFacts& facts_of(TokenType type) { return kTypes[static_cast<size_t>(type)]; }

// The type with this value of a fact; nullopt without one.
template <class Value>
std::optional<TokenType> type_with(Value TypeFacts::*fact, Value value) {
  const auto found = std::ranges::find(kTypes, value, fact);
  return found == kTypes.end() ? std::nullopt : std::optional(static_cast<TokenType>(found - kTypes.begin()));
}

TokenType type_of(std::string_view descr, const ByteReader& reader) {
  if (const auto type = type_with(&TypeFacts::npy, descr)) return *type;
  reader.fail("dtype ", descr.substr(0, 40), " cannot hold token ids; save a little-endian integer array");
}

TokenArray open_with_header(Descriptor file, std::span<const std::byte> beginning) {
  ByteReader reader(beginning, file.path().string());
  const NpyHeader header = read_npy_header(reader);
  const TokenType type = type_of(header.descr, reader);
  if (header.shape.size() != 1) reader.fail("the array is not one-dimensional");
  const uint64_t offset = reader.offset();
  require_npy_bytes(reader, header.shape, size_of(type), file.size() - offset);
  return TokenArray(std::move(file), offset, type, static_cast<uint64_t>(header.shape[0]));
}

using namespace std::string_view_literals;

constexpr std::string_view kIndexMagic = "MMIDIDX\0\0"sv;
constexpr uint64_t kVersion = 1;
constexpr uint64_t kIndexHeadBytes = 34;  // before the three arrays

TokenType read_header(ByteReader& reader) {
  if (reader.take_text(kIndexMagic.size()) != kIndexMagic)
    reader.fail("not a Megatron index: it must begin with MMIDIDX");
  const auto version = reader.read<uint64_t>();
  if (version != kVersion) reader.fail("index version ", version, " is not supported; only version 1 is");
  const auto code = reader.read<uint8_t>();
  const auto type = type_with(&TypeFacts::megatron, code);
  if (code == 0 || !type) reader.fail("type code ", code, " is not an integer type");
  return *type;
}

// One of the three arrays of an index file, read from its first value to its last.
template <class T>
class IndexColumn {
 public:
  // Precondition: the file holds `count` values from `offset` on.
  IndexColumn(const Descriptor& file, uint64_t offset, uint64_t count)
      : file_(file), offset_(offset), unread_(count) {}

  T next() {
    constexpr uint64_t kPiece = uint64_t{1} << 15;
    if (at_ == piece_.size()) {
      piece_.resize(std::min(kPiece, unread_));
      file_.read_at(offset_, std::as_writable_bytes(std::span(piece_)));
      unread_ -= piece_.size();
      at_ = 0;
    }
    offset_ += sizeof(T);
    return piece_[at_++];
  }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... cause) const {
    throw DataError(file_.path(), ": byte ", offset_, ": ", cause...);
  }

 private:
  const Descriptor& file_;
  uint64_t offset_, unread_;
  std::vector<T> piece_;
  size_t at_ = 0;
};

// Checks that the sequences lie one after another without gaps. Returns the total number of ids.
uint64_t check_sequences(IndexColumn<int32_t> lengths, IndexColumn<int64_t> pointers, uint64_t sequences,
                         uint64_t id_size) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const uint64_t begin = total * id_size;
    if (pointers.next() != static_cast<int64_t>(begin))
      pointers.fail("sequence ", i, " (the value before this byte) must begin at byte ", begin,
                    " of the .bin file");
    const int32_t length = lengths.next();
    if (length < 0) lengths.fail("sequence ", i, " (the value before this byte) has the length ", length);
    total += static_cast<uint64_t>(length);
    if (total > (uint64_t{1} << 59)) lengths.fail("the lengths sum to more than any file holds");
  }
  return total;
}

void check_bounds(IndexColumn<int64_t> values, uint64_t bounds, uint64_t sequences) {
  int64_t previous = 0;
  for (uint64_t i = 0; i < bounds; ++i) {
    const int64_t bound = values.next();
    if (bound < previous || (i == 0 && bound != 0) || bound > static_cast<int64_t>(sequences) ||
        (i + 1 == bounds && bound != static_cast<int64_t>(sequences)))
      values.fail("document bound ", i, " (the value before this byte) is ", bound,
                  "; bounds must rise from 0 to ", sequences);
    previous = bound;
  }
}

fs::path with_ending(const fs::path& prefix, const char* ending) { return prefix.string() + ending; }

// Lists the .bin and .npy files of the folder, sorted by name. An .idx file without its .bin file is listed
// too, so that opening it reports the missing file.
std::vector<fs::path> list_token_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const fs::path& path = it->path();
    if (path.filename().string().starts_with(".")) continue;
    if (path.extension() == ".npy" || path.extension() == ".bin") files.push_back(path);
    if (path.extension() == ".idx" && !is_there(fs::path(path).replace_extension(".bin")))
      files.push_back(path);
  }
  if (error) throw DataError(folder, ": cannot be listed: ", error.message());
  std::sort(files.begin(), files.end());
  return files;
}

// Returns the prefix "a" for "a.bin" and "a.idx", and any other path unchanged.
fs::path prefix_of(const fs::path& path) {
  return path.extension() == ".bin" || path.extension() == ".idx" ? fs::path(path).replace_extension() : path;
}

}  // namespace

uint64_t size_of(TokenType type) { return facts_of(type).size; }

TokenArray::TokenArray(Descriptor file, uint64_t offset, TokenType type, uint64_t count)
    : file_(std::move(file)), offset_(offset), type_(type), count_(count) {
  const uint64_t bytes = file_.size();
  if (offset > bytes || count > (bytes - offset) / size_of(type))
    throw DataError(path(), ": byte ", bytes, ": ends before ", count, " ids of ", size_of(type), " bytes");
}

void TokenArray::read(uint64_t offset, std::span<int64_t> out) const {
  const uint64_t size = size_of(type_);
  file_.read_at(offset_ + offset * size, std::as_writable_bytes(out).last(out.size() * size));
  facts_of(type_).widen(out);
}

int64_t TokenArray::scan(Hasher& ids) const {
  constexpr uint64_t kChunk = uint64_t{1} << 16;
  std::vector<int64_t> buffer(std::min(kChunk, count_));
  int64_t largest = -1;
  for (uint64_t offset = 0; offset < count_; offset += kChunk) {
    end_if_stopped();
    const auto chunk = std::span(buffer).first(std::min(kChunk, count_ - offset));
    read(offset, chunk);
    ids.update(std::as_bytes(chunk));
    const auto [low, high] = std::minmax_element(chunk.begin(), chunk.end());
    if (*low < 0)
      throw DataError(
          path(), ": byte ", offset_ + (offset + static_cast<uint64_t>(low - chunk.begin())) * size_of(type_),
          ": a token id is negative or at least 2^63; the file is damaged or does not hold token ids");
    largest = std::max(largest, *high);
  }
  return largest;
}

FolderKind token_folder_kind() {
  return {kTokenDataFormat, kPrepareRecordFormat, {kIndexName, kTokenizerName}, {kLengthsName}};
}

ordered_json to_json(uint64_t documents, uint64_t tokens, int64_t max_token) {
  ordered_json about = {{"documents", documents}, {"tokens", tokens}};
  if (max_token >= 0) about["max_token"] = max_token;
  return about;
}

TokenFacts read_facts(const Manifest& manifest, const fs::path& path) {
  const JsonFields about(manifest.about, path.string()), job = about.object("job");
  TokenFacts facts{job.text("tokenizer_hash"), job.integer("end_of_text", 0), about.count("documents"),
                   about.count("tokens")};
  if (facts.tokens > 0) facts.max_token = about.integer("max_token", 0);
  return facts;
}

TokenArray open_npy(const fs::path& path, int64_t vocab_size) {
  Descriptor file = open_regular(path);
  const auto beginning = read_npy_beginning(file);
  if (begins_as_npy(beginning)) return open_with_header(std::move(file), beginning);
  const TokenType type = vocab_size > (int64_t{1} << 16) ? TokenType::kUint32 : TokenType::kUint16;
  const uint64_t bytes = file.size();
  if (bytes % size_of(type) != 0)
    throw DataError(path, ": byte ", bytes, ": ends within a token id of ", size_of(type),
                    " bytes: truncated");
  const uint64_t count = bytes / size_of(type);
  return TokenArray(std::move(file), 0, type, count);
}

TokenPair open_megatron(const fs::path& bin, const fs::path& idx) {
  const Descriptor index = open_regular(idx);
  const uint64_t index_bytes = index.size();
  std::vector<std::byte> head(std::min(index_bytes, kIndexHeadBytes));
  index.read_at(0, head);
  ByteReader reader(head, idx.string());
  const TokenType type = read_header(reader);
  const auto sequences = reader.read<uint64_t>();
  const auto bounds = reader.read<uint64_t>();
  uint64_t offset = kIndexHeadBytes;
  // Checks that the next array is complete, before it is read.
  const auto begin_of = [&](uint64_t values, uint64_t size) {
    if (values > (index_bytes - offset) / size)
      throw DataError(idx, ": byte ", offset, ": needs ", values, " x ", size, " bytes, has ",
                      index_bytes - offset);
    return std::exchange(offset, offset + values * size);
  };
  const IndexColumn<int32_t> lengths(index, begin_of(sequences, sizeof(int32_t)), sequences);
  const IndexColumn<int64_t> pointers(index, begin_of(sequences, sizeof(int64_t)), sequences);
  const IndexColumn<int64_t> bound_values(index, begin_of(bounds, sizeof(int64_t)), bounds);
  if (offset != index_bytes)
    throw DataError(idx, ": byte ", offset, ": ", index_bytes - offset, " bytes follow the index");
  if (bounds == 0) reader.fail("the index has no document bounds");
  const uint64_t count = check_sequences(lengths, pointers, sequences, size_of(type));
  check_bounds(bound_values, bounds, sequences);
  Descriptor ids = open_regular(bin);
  if (ids.size() != count * size_of(type))
    throw DataError(bin, ": byte ", ids.size(), ": the file ends, but ", idx.filename(), " lists ",
                    count * size_of(type), " bytes; it is truncated or belongs to another index");
  return {TokenArray(std::move(ids), 0, type, count), bounds - 1};
}

std::string write_megatron_index(const fs::path& path, TokenType type, const MappedFile& lengths) {
  Hasher hasher;
  OutputFile file(path, &hasher);
  const auto put = [&](auto value) { file.write(std::as_bytes(std::span(&value, 1))); };
  const uint64_t documents = lengths.bytes().size() / sizeof(int32_t);
  file.write(kIndexMagic);
  put(kVersion);
  put(facts_of(type).megatron);
  put(documents);
  put(documents + 1);
  file.write(lengths.bytes());
  ByteReader reader(lengths.bytes(), lengths.path().string());
  uint64_t begin = 0;
  for (uint64_t i = 0; i < documents; ++i) {
    put(static_cast<int64_t>(begin));
    begin += static_cast<uint64_t>(reader.read<int32_t>()) * size_of(type);
  }
  for (uint64_t i = 0; i <= documents; ++i) put(static_cast<int64_t>(i));
  file.sync_and_close();
  return hasher.hexdigest();
}

std::optional<fs::path> tokenizer_beside(const fs::path& data) {
  const fs::path path = data / kTokenizerName;
  return path_kind(path) == PathKind::kFile ? std::optional(path) : std::nullopt;
}

void TokenStream::add_pair(const fs::path& prefix) {
  auto pair = open_megatron(with_ending(prefix, ".bin"), with_ending(prefix, ".idx"));
  arrays_.push_back(std::move(pair.tokens));
  documents_ += pair.documents;
}

void TokenStream::open_folder(Verify verify, int64_t vocab_size) {
  require_finished(path_, token_folder_kind());
  const auto files = list_token_files(path_);
  std::optional<TokenFacts> facts;
  if (is_there(path_ / kManifestName)) {
    const Manifest manifest = read_verified_manifest(path_, kTokenDataFormat, verify);
    for (const fs::path& path : files)
      if (!manifest.files.contains(path.filename().string()))
        throw DataError(path, ": not in this folder's manifest.json; move it elsewhere");
    facts = read_facts(manifest, path_ / kManifestName);
    content_hash_ = hash_of(manifest.files);
  } else if (files.empty()) {
    throw DataError(path_, ": holds no token files (.bin with .idx, or .npy)");
  }
  for (const fs::path& file : files) {
    if (file.extension() == ".npy")
      arrays_.push_back(open_npy(file, vocab_size));
    else
      add_pair(prefix_of(file));
  }
  if (!facts) return scan();
  uint64_t tokens = 0;
  for (const TokenArray& array : arrays_) tokens += array.size();
  if (tokens != facts->tokens || documents_ != facts->documents)
    throw DataError((path_ / kManifestName).string(), ": counts ", facts->tokens, " tokens in ",
                    facts->documents, " documents, but the files hold ", tokens, " in ", documents_);
  tokenizer_hash_ = facts->tokenizer_hash;
  end_of_text_ = facts->end_of_text;
  max_token_ = facts->max_token;
}

void TokenStream::open_single(int64_t vocab_size) {
  if (path_.extension() == ".npy")
    arrays_.push_back(open_npy(path_, vocab_size));
  else if (is_there(with_ending(prefix_of(path_), ".idx")) || is_there(with_ending(prefix_of(path_), ".bin")))
    add_pair(prefix_of(path_));
  else
    throw DataError(path_, ": no token data; make it (dtopp prepare text FILES --tokenizer FILE --output ",
                    path_,
                    "), or give a folder, a .npy file, or the common prefix of a .bin and an .idx file");
  scan();
}

void TokenStream::scan() {
  Hasher ids;
  for (const TokenArray& array : arrays_) max_token_ = std::max(max_token_, array.scan(ids));
  content_hash_ = ids.hexdigest();
}

TokenStream TokenStream::open(const fs::path& path, Verify verify, int64_t vocab_size) {
  TokenStream stream(path);
  std::error_code unused;
  if (fs::is_directory(path, unused))
    stream.open_folder(verify, vocab_size);
  else
    stream.open_single(vocab_size);
  for (const TokenArray& array : stream.arrays_)
    stream.first_token_.push_back(stream.first_token_.back() + array.size());
  return stream;
}

void TokenStream::read(uint64_t offset, std::span<int64_t> out) const {
  if (offset > size() || out.size() > size() - offset)
    throw std::out_of_range("tokens " + std::to_string(offset) + " + " + std::to_string(out.size()) +
                            " lie beyond the " + std::to_string(size()) + " of " + path().string());
  const auto& first = first_token_;
  auto part = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), offset) - first.begin()) - 1;
  for (; !out.empty(); ++part) {
    const uint64_t count = std::min<uint64_t>(out.size(), first[part + 1] - offset);
    arrays_[part].read(offset - first[part], out.first(count));
    offset += count;
    out = out.subspan(count);
  }
}

void TokenStream::require_ids_below(int64_t vocab_size) const {
  if (max_token() < vocab_size) return;
  throw UsageError(path(), ": token id ", max_token(), " does not fit model.vocab_size ", vocab_size,
                   "; raise model.vocab_size, or prepare the text again");
}

}  // namespace dtopp::data
