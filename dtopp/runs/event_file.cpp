#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <string_view>

#include <unistd.h>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/runs/metrics.h"

namespace dtopp::runs {
namespace {

namespace fs = std::filesystem;

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

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
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
    long long other = 0;
    if (std::sscanf(name.c_str() + kPrefix.size(), "%10lld.", &other) == 1)
      time = std::max<int64_t>(time, other + 1);
  }
  return time;
}

fs::path new_path(const fs::path& directory, double now) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  const auto time = static_cast<long long>(time_after_others(directory, now));
  return directory /
         (std::string(kPrefix) + format("%010lld.%s.%d", time, host.data(), static_cast<int>(::getpid())));
}

}  // namespace

EventFile::EventFile(const fs::path& directory, int64_t first_step) {
  const double now = seconds_since_epoch();
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

void EventFile::write(const MetricRecord& record) {
  std::string event = event_at(record.time, record.step);
  append_bytes(event, 5, summary_of(record));
  append(event);
}

// A TFRecord: length, checksum of the length, data, checksum of the data.
void EventFile::append(const std::string& event) {
  std::string frame;
  append_little_endian(frame, uint64_t{event.size()});
  append_little_endian(frame, masked_crc(frame));
  frame += event;
  append_little_endian(frame, masked_crc(event));
  errno = 0;
  file_ << frame << std::flush;
  if (!file_) throw file_error("write", path_, errno);
}

}  // namespace dtopp::runs
