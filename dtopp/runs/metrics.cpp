#include "dtopp/runs/metrics.h"

#include <array>
#include <bit>
#include <chrono>
#include <cmath>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

namespace dtopp::runs {
namespace {

constexpr std::string_view kLineStart = "{\"step\":";

void append_value(std::string& text, double value) {
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  if (!std::isfinite(value)) {
    text += "null";
  } else if (value == 0 && std::signbit(value)) {
    text += "-0.0";  // "-0" would be read as the integer 0
  } else if (value == std::trunc(value) && std::abs(value) < kExactIntegers) {
    text += std::to_string(static_cast<int64_t>(value));  // to_chars would print the double 100000 as 1e+05
  } else {
    std::array<char, 32> buffer;
    text.append(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr);
  }
}

// The step of a complete line in the format of to_json; nullopt for anything else, such as a line torn by a
// crash.
std::optional<int64_t> step_of(std::string_view line) {
  if (!line.starts_with(kLineStart) || !line.ends_with('}')) return std::nullopt;
  int64_t step = 0;
  const char* first = line.data() + kLineStart.size();
  const auto [end, error] = std::from_chars(first, line.data() + line.size(), step);
  if (error != std::errc{} || *end != ',') return std::nullopt;
  return step;
}

// A validation without held-out text has only the accuracies of its tasks.
bool is_validation(std::string_view line) {
  return line.find("\"val/") != std::string_view::npos || line.find("\"eval/") != std::string_view::npos;
}

std::string lines_until(std::string_view text, int64_t last_step, int64_t last_validation) {
  std::string kept;
  kept.reserve(text.size());
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    if (newline == std::string_view::npos) break;  // a torn line
    const auto line = text.substr(0, newline);
    const auto step = step_of(line);
    if (step && *step <= (is_validation(line) ? last_validation : last_step))
      kept += text.substr(0, newline + 1);
    text.remove_prefix(newline + 1);
  }
  return kept;
}

void truncate_file(const fs::path& path, uint64_t size) {
  const Descriptor file(path, O_WRONLY, "open");
  if (retry([&] { return ::ftruncate(file.get(), static_cast<off_t>(size)); }) != 0 ||
      retry([&] { return ::fsync(file.get()); }) != 0)
    throw file_error("shorten", path, errno);
}

// Returns the end of the file from byte `begin` on: the shortest of 64 KiB, 128 KiB, … for which
// is_enough(text) is true, else the whole file.
struct FileEnd {
  uint64_t begin = 0;
  std::string text{};
};
template <class IsEnough>
FileEnd read_end(const fs::path& path, const IsEnough& is_enough) {
  constexpr uint64_t kFirst = uint64_t{1} << 16;
  const Descriptor file = open_regular(path);
  const uint64_t size = file.size();
  for (uint64_t bytes = kFirst;; bytes *= 2) {
    FileEnd end{size - std::min(size, bytes)};
    end.text.resize(size - end.begin);
    file.read_at(end.begin, std::as_writable_bytes(std::span(end.text)));
    if (end.begin == 0 || is_enough(std::string_view(end.text))) return end;
  }
}

// Whether the text, whose first line may be cut, holds a complete line of a step before `step`.
bool reaches_before(std::string_view text, int64_t step) {
  for (size_t begin = text.find('\n'); begin != std::string_view::npos;) {
    const size_t end = text.find('\n', ++begin);
    const auto line_step =
        end == std::string_view::npos ? std::nullopt : step_of(text.substr(begin, end - begin));
    if (line_step) return *line_step < step;  // steps ascend
    begin = end;
  }
  return false;
}

// Every line of a step before `last_step` is kept, because its state has recorded all validations before it.
void drop_lines_past(const fs::path& path, int64_t last_step, int64_t last_validation) {
  if (path_kind(path) == PathKind::kNothing) return;
  FileEnd end = read_end(path, [&](std::string_view text) { return reaches_before(text, last_step); });
  if (end.begin > 0) {
    const size_t cut = end.text.find('\n') + 1;
    end = {end.begin + cut, end.text.substr(cut)};
  }
  const std::string kept = lines_until(end.text, last_step, last_validation);
  if (kept.size() == end.text.size()) return;
  if (end.text.starts_with(kept)) return truncate_file(path, end.begin + kept.size());
  write_file_atomically(path, [&](OutputFile& file) {  // a torn line lies between lines to keep
    file.write(read_file(path, std::numeric_limits<uint64_t>::max()).substr(0, end.begin));
    file.write(kept);
  });
}

constexpr std::string_view kPrefix = "events.out.tfevents.";

// CRC-32C (Castagnoli), reflected.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78U : 0U);
    table[byte] = crc;
  }
  return table;
}();

// TFRecord rotates and shifts checksums, because a checksum of data that contains checksums is weak.
uint32_t masked_crc(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  crc = ~crc;
  return std::rotr(crc, 15) + 0xA282EAD8U;
}

template <class Unsigned>
void append_little_endian(std::string& out, Unsigned value) {
  for (size_t i = 0; i < sizeof(value); ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

// Protobuf: a field is a tag (number << 3 | wire type) followed by its content.
enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void append_tag(std::string& out, uint64_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

// Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
//         SessionLog session_log = 7; }
std::string event_at(double time, int64_t step) {
  std::string event;
  append_tag(event, 1, kFixed64);
  append_little_endian(event, std::bit_cast<uint64_t>(time));
  append_tag(event, 2, kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

// Summary { repeated Value value = 1; }  Value { string tag = 1; float simple_value = 2; }
std::string summary_of(const MetricRecord& record) {
  std::string summary;
  for (const auto& [name, number] : record.values) {
    std::string value;
    append_bytes(value, 1, name);
    append_tag(value, 2, kFixed32);
    append_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(number)));
    append_bytes(summary, 1, value);
  }
  return summary;
}

// TensorBoard reads the files of a directory in the order of their names, and purges only what it has already
// read. The file of a resumed run must therefore sort last, even within the same second or after the clock
// was set back.
int64_t time_after_others(const fs::path& directory, double now) {
  auto time = static_cast<int64_t>(now);
  std::error_code unreadable;  // opening the new file reports the error
  for (const auto& entry : fs::directory_iterator(directory, unreadable)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t other = 0;
    if (std::sscanf(name.c_str() + kPrefix.size(), "%10ld.", &other) == 1) time = std::max(time, other + 1);
  }
  return time;
}

fs::path new_path(const fs::path& directory, double now) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const int64_t time = time_after_others(directory, now);
  return directory /
         (std::string(kPrefix) + format("%010ld.%s.%d", time, host.data(), static_cast<int>(::getpid())));
}

}  // namespace

// A TensorBoard event file: TFRecord framing with masked CRC-32C around hand-encoded Event protobufs.
class EventFile {
 public:
  // Creates events.out.tfevents.<time>.<host>.<pid> in `directory`, which sorts after the existing ones. A
  // SessionLog START event makes TensorBoard purge the steps from `first_step` on that earlier files contain.
  // Throws DataError if it cannot be written.
  EventFile(const fs::path& directory, int64_t first_step) {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    path_ = new_path(directory, now);
    errno = 0;
    file_.open(path_, std::ios::binary);
    if (!file_) throw file_error("open", path_, errno);
    std::string version = event_at(now, 0);
    append_bytes(version, 3, "brain.Event:2");
    append(version);
    std::string start = event_at(now, first_step);
    append_bytes(start, 7, std::string{1 << 3 | kVarint, 1});  // SessionLog { status = START; }
    append(start);
  }
  // Writes one Event with all values to the file before it returns. Values are rounded to float,
  // TensorBoard's type.
  void write(const MetricRecord& record) {
    std::string event = event_at(record.time, record.step);
    append_bytes(event, 5, summary_of(record));
    append(event);
  }
  const fs::path& path() const { return path_; }

 private:
  // A TFRecord: length, checksum of the length, data, checksum of the data.
  void append(const std::string& event) {
    std::string frame;
    append_little_endian(frame, uint64_t{event.size()});
    append_little_endian(frame, masked_crc(frame));
    frame += event;
    append_little_endian(frame, masked_crc(event));
    errno = 0;
    file_ << frame << std::flush;
    if (!file_) throw file_error("write", path_, errno);
  }

  fs::path path_;
  std::ofstream file_;
};

std::string to_json(const MetricRecord& record) {
  std::string line = concat(kLineStart, record.step, ",\"tokens\":", record.tokens, ",\"time\":");
  append_value(line, record.time);
  for (const auto& [name, value] : record.values) {
    line += ',' + quote_json(name) + ':';
    append_value(line, value);
  }
  return line + '}';
}

double last_value(const fs::path& directory, std::string_view name) {
  if (path_kind(directory / kMetricsFile) == PathKind::kNothing) return 0;
  const std::string key = ',' + quote_json(std::string(name)) + ':';
  const auto find = [&](std::string_view text) {
    const size_t newline = text.rfind('\n');
    return newline == std::string_view::npos ? newline : text.rfind(key, newline);
  };
  const std::string text = read_end(directory / kMetricsFile, [&](std::string_view end) {
                             return find(end) != std::string_view::npos;
                           }).text;
  const size_t found = find(text);
  double value = 0;
  if (found != std::string::npos)
    std::from_chars(text.data() + found + key.size(), text.data() + text.size(), value);
  return value;
}

MetricsWriter::MetricsWriter(const fs::path& directory, int64_t resume_step, bool tensorboard,
                             std::optional<int64_t> last_validation)
    : path_(directory / kMetricsFile) {
  drop_lines_past(path_, resume_step, last_validation.value_or(resume_step));
  errno = 0;
  file_.open(path_, std::ios::binary | std::ios::app);
  if (!file_) throw file_error("open", path_, errno);
  if (tensorboard) events_ = std::make_unique<EventFile>(directory, resume_step + 1);
  sync_directory(directory);
}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write(const MetricRecord& record) {
  errno = 0;
  file_ << to_json(record) << '\n' << std::flush;
  if (!file_) throw file_error("write", path_, errno);
  if (events_) events_->write(record);
}

void MetricsWriter::sync() const {
  sync_file(path_);
  if (events_) sync_file(events_->path());
}

}  // namespace dtopp::runs
