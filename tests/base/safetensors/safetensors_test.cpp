#include "dtopp/base/safetensors.h"

#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::safetensors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string text(sizeof(size), '\0');
  std::memcpy(text.data(), &size, sizeof(size));
  return text + header + data;
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  OutputFile file(path);
  file.write(bytes);
  file.sync_and_close();
}

TEST(Safetensors, read_back_what_was_written) {
  ScratchDirectory scratch;
  const std::string data = "0123456789abcdefghijklmnopqrstuv";
  const auto part = [&](size_t begin, size_t size) {
    return bytes_of(std::string_view(data).substr(begin, size));
  };
  const std::vector<TensorView> views = {{"b", "BF16", {3, 1}, part(0, 6)},
                                         {"scalar", "F32", {}, part(6, 4)},
                                         {"empty", "I64", {0, 5}, part(10, 0)},
                                         {"a \"quoted\" ü", "U8", {2, 2, 2}, part(10, 8)}};
  std::vector<TensorSource> tensors;
  for (const TensorView& view : views) tensors.emplace_back(view.name, view.dtype, view.shape, view.bytes);
  Hasher hasher;
  const auto size = write_safetensors(scratch / "file", tensors, {{"format", "pt"}}, &hasher);
  EXPECT_EQ(size, std::filesystem::file_size(scratch / "file"));
  EXPECT_EQ(hasher.hexdigest(), hash_file(scratch / "file"));

  const SafetensorsFile file(scratch / "file");
  ASSERT_EQ(file.tensors().size(), views.size());
  for (const auto& expected : views) {
    const auto* const tensor = file.find(expected.name);
    ASSERT_NE(tensor, nullptr) << expected.name;
    EXPECT_EQ(tensor->dtype, expected.dtype);
    EXPECT_EQ(tensor->shape, expected.shape);
    EXPECT_EQ(text_of(tensor->bytes), text_of(expected.bytes));
  }
  EXPECT_EQ(file.tensors().front().name, "b");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, data_begin_at_a_multiple_of_64_bytes) {
  ScratchDirectory scratch;
  for (size_t length = 1; length < 130; length += 3) {
    write_safetensors(scratch / "file", {{std::string(length, 'n'), "U8", {1}, bytes_of("x")}});
    EXPECT_EQ((std::filesystem::file_size(scratch / "file") - 1) % 64, 0u);
    const SafetensorsFile file(scratch / "file");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensors()[0].bytes.data()) % 64, 0u);
  }
}

TEST(Safetensors, no_tensors_are_a_valid_file) {
  ScratchDirectory scratch;
  write_safetensors(scratch / "file", {});
  EXPECT_TRUE(SafetensorsFile(scratch / "file").tensors().empty());
}

TEST(Safetensors, stay_readable_after_a_move) {
  ScratchDirectory scratch;
  write_safetensors(scratch / "file", {{"a", "U8", {3}, bytes_of("xyz")}});
  std::vector<SafetensorsFile> files;
  for (int i = 0; i < 9; ++i) files.emplace_back(scratch / "file");
  EXPECT_EQ(text_of(files.front().find("a")->bytes), "xyz");
}

TEST(Safetensors, refuse_to_write_tensors_that_could_not_be_read) {
  ScratchDirectory scratch;
  const auto refused = [&](const std::vector<TensorSource>& tensors) {
    return error_of<DataError>([&] { write_safetensors(scratch / "file", tensors); });
  };
  EXPECT_THAT(refused({{"a", "F32", {2}, bytes_of("1234")}}), HasSubstr("do not fit"));
  EXPECT_THAT(refused({{"a", "F7", {4}, bytes_of("1234")}}), HasSubstr("do not fit"));
  EXPECT_THAT(refused({{"a", "U8", {-4}, bytes_of("1234")}}), HasSubstr("do not fit"));
  EXPECT_THAT(refused({{"a", "U8", {4}, bytes_of("1234")}, {"a", "U8", {4}, bytes_of("1234")}}),
              HasSubstr("taken"));
  EXPECT_THAT(refused({{"__metadata__", "U8", {4}, bytes_of("1234")}}), HasSubstr("taken"));
  const auto three = [](uint64_t, uint64_t, const TakeBytes& take) { take(bytes_of("123")); };
  EXPECT_THAT(refused({{"a", "U8", {4}, 4, three}}), HasSubstr("tensor \"a\": its size in bytes is not 4"));
  EXPECT_THAT(refused({{"a", "U8", {2}, 2, three}}), HasSubstr("its size in bytes is not 2"));
}

TEST(Safetensors, are_written_the_same_from_bytes_in_pieces) {
  ScratchDirectory scratch;
  const std::string data = "0123456789abcdef";
  write_safetensors(scratch / "whole", {{"a", "U8", {16}, bytes_of(data)}, {"b", "U8", {0}, bytes_of("")}});
  const auto pieces = [&](uint64_t begin, uint64_t count, const TakeBytes& take) {
    for (const char& byte : data.substr(begin, count)) take(bytes_of({&byte, 1}));
  };
  write_safetensors(scratch / "pieces", {{"a", "U8", {16}, 16, pieces},
                                         {"b", "U8", {0}, 0, [](uint64_t, uint64_t, const TakeBytes&) {}}});
  EXPECT_EQ(read_file(scratch / "pieces"), read_file(scratch / "whole"));
}

struct Damage {
  const char* header;
  const char* cause;
};

// Eight bytes of data follow each header.
constexpr Damage kDamages[] = {
    {R"([])", "does not begin with {"},
    {R"( {})", "does not begin with {"},
    {R"({"a")", "not JSON at byte"},
    {R"({} {})", "not JSON at byte"},
    {R"({})", "8 bytes that belong to no tensor"},
    {R"({"a":1})", "unexpected number"},
    {R"({"a":null})", "unexpected null"},
    {R"({"a":{"dtype":"U8","shape":[8]}})", "lacks"},
    {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})", "lacks"},
    {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})", "more than two"},
    {R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})", "unexpected array"},
    {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":{}}})", "unknown key"},
    {R"({"a":{"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]}})", "shape twice"},
    {R"({"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}})", "a negative number"},
    {R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})", "not an integer"},
    {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})", "out of range"},
    {R"({"a":{"dtype":"U9","shape":[8],"data_offsets":[0,8]}})", "unknown dtype \"U9\""},
    {R"({"a":{"dtype":"F32","shape":[8],"data_offsets":[0,8]}})", "do not fit its 32 bytes"},
    {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})", "gap or an overlap"},
    {R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[1,8]}})", "gap or an overlap"},
    {R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", "needs 9 bytes, has 8"},
    {R"({"a":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}})", "1 bytes that belong to no tensor"},
    {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", "overflows"},
    {R"({"a":{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}})", "overflows"},
    {R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "\"b\": begins with a gap or an overlap"},
    {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
     "\"a\": appears twice"},
    {R"({"__metadata__":{"x":1},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "unexpected number"},
    {R"({"__metadata__":{},"__metadata__":{},"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", "twice"},
};

TEST(Safetensors, name_the_file_the_byte_and_what_is_wrong) {
  ScratchDirectory scratch;
  for (const auto& [header, cause] : kDamages) {
    write(scratch / "file", file_of(header, "12345678"));
    EXPECT_THAT(error_of<DataError>([&] { SafetensorsFile{scratch / "file"}; }),
                AllOf(StartsWith((scratch / "file").string() + ": byte "), HasSubstr(cause)))
        << header;
  }
}

TEST(Safetensors, refuse_headers_longer_than_the_file_or_the_limit) {
  ScratchDirectory scratch;
  const auto refused = [&](const std::string& bytes) {
    write(scratch / "file", bytes);
    return error_of<DataError>([&] { SafetensorsFile{scratch / "file"}; });
  };
  EXPECT_THAT(refused(""), HasSubstr("needs 8 bytes, has 0"));
  EXPECT_THAT(refused("1234567"), HasSubstr("needs 8 bytes, has 7"));
  EXPECT_THAT(refused(std::string("\x03\0\0\0\0\0\0\0{}", 10)), HasSubstr("needs 3 bytes, has 2"));
  EXPECT_THAT(refused(std::string(8, '\xff')), HasSubstr("a header of 18446744073709551615 bytes"));
  EXPECT_THAT(refused(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10)),
              HasSubstr("a header of 100000001 bytes"));
  EXPECT_THAT(refused(file_of(std::string("{}\0", 3), "")), HasSubstr("NUL"));
  EXPECT_THAT(refused(file_of("{\"" + std::string(1000000, '{'), "")), HasSubstr("not JSON"));
  EXPECT_THAT(refused(file_of("{\"a\":" + std::string(1000000, '['), "")), HasSubstr("unexpected array"));
}

// One random change: a flipped bit, a byte from the format's own alphabet, a cut, a repeat, another length.
std::string mutate(std::string bytes, std::mt19937& generator) {
  static constexpr std::string_view kAlphabet = "{}[],:\"0123456789-.eE aFBIU\\\x00\xff";
  const auto below = [&](size_t limit) { return generator() % limit; };
  for (size_t changes = 1 + below(4); changes > 0 && !bytes.empty(); --changes) {
    const size_t at = below(3) ? below(bytes.size()) : below(std::min<size_t>(bytes.size(), 8));
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        bytes[at] = kAlphabet[below(kAlphabet.size())];
        break;
      case 2:
        bytes.erase(at, 1 + below(9));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(30)));
        break;
      case 4:
        bytes.insert(at, std::to_string(uint64_t{generator()} * generator()));
        break;
      default:
        bytes.resize(at);
        break;
    }
  }
  return bytes;
}

// R4: for any bytes, reading ends in a DataError or in tensors that lie within the file.
TEST(SafetensorsNightly, survive_random_mutations) {
  ScratchDirectory scratch;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"c":{"dtype":"U8","shape":[],"data_offsets":[22,23]}})";
  const auto original = file_of(header, std::string(23, 'x'));
  std::mt19937 generator(1);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto bytes = mutate(original, generator);
    const auto path = scratch / "file";
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    std::fclose(file);
    try {
      const SafetensorsFile parsed(path);
      size_t total = 0;
      for (const auto& tensor : parsed.tensors()) {
        total += tensor.bytes.size();
        hash_bytes(tensor.bytes);  // touches each byte
      }
      EXPECT_LE(total, bytes.size());
      ++accepted;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace dtopp::safetensors_test
