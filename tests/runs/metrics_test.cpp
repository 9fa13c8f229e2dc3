#include "dtopp/runs/metrics.h"

#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>
#include <sys/resource.h>

#include "dtopp/base/files.h"
#include "tests/base/forbidden.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::runs {
namespace {

namespace fs = std::filesystem;

MetricRecord record(int64_t step, double loss) { return {step, step * 128, 1.5, {{"train/loss", loss}}}; }

std::string line(int64_t step, double loss) { return to_json(record(step, loss)) + "\n"; }

TEST(ToJson, has_its_keys_in_order_and_whole_numbers_without_a_point) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_json({7, 1792, 1763728445.25, {{"b", 0.1}, {"a", 100000}, {"n", nan}, {"i", -infinity}}}),
            R"({"step":7,"tokens":1792,"time":1763728445.25,"b":0.1,"a":100000,"n":null,"i":null})");
}

TEST(ToJson, prints_numbers_an_integer_cannot_hold) {
  EXPECT_EQ(to_json({0, 0, 0, {{"zero", -0.0}, {"large", 1e300}, {"small", 5e-324}}}),
            R"({"step":0,"tokens":0,"time":0,"zero":-0.0,"large":1e+300,"small":5e-324})");
}

TEST(ToJson, escapes_names) {
  EXPECT_EQ(nlohmann::json::parse(to_json({1, 1, 1, {{"a\"\\\n", 2}}})).at("a\"\\\n"), 2);
}

RC_GTEST_PROP(ToJsonProperty, doubles_read_back_exactly, ()) {
  const auto bits = *rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<uint64_t>());
  const auto value = std::bit_cast<double>(bits);
  RC_PRE(std::isfinite(value));
  const auto read = nlohmann::json::parse(to_json({1, 1, 1, {{"x", value}}})).at("x").get<double>();
  RC_ASSERT(std::bit_cast<uint64_t>(read) == bits);
}

class Metrics : public ::testing::Test {
 protected:
  void write_all(int64_t resume_step, int64_t first, int64_t last) {
    MetricsWriter writer(directory_.path(), resume_step, false);
    for (int64_t step = first; step <= last; ++step)
      writer.write(record(step, 1.0 / static_cast<double>(step)));
  }
  void put(const std::string& text) { write_file_atomically(directory_ / "metrics.jsonl", text); }
  std::string text() { return read_file(directory_ / "metrics.jsonl"); }

  ScratchDirectory directory_;
};

TEST_F(Metrics, each_line_is_in_the_file_when_write_returns) {
  MetricsWriter writer(directory_.path(), -1, false);
  writer.write(record(1, 0.5));
  EXPECT_EQ(text(), line(1, 0.5));
  writer.write(record(2, 0.25));
  EXPECT_EQ(text(), line(1, 0.5) + line(2, 0.25));
}

TEST_F(Metrics, a_resumed_run_leaves_the_file_of_a_run_never_stopped) {
  write_all(-1, 1, 12);
  const std::string whole = text();
  write_all(-1, 1, 7);
  write_all(4, 5, 12);
  EXPECT_EQ(text(), whole);
}

TEST_F(Metrics, keeps_every_line_of_the_step_it_resumes_from) {
  put(line(4, 2) + line(4, 3) + line(5, 4));
  write_all(4, 5, 5);
  EXPECT_EQ(text(), line(4, 2) + line(4, 3) + line(5, 0.2));
}

TEST_F(Metrics, a_validation_that_will_be_made_again_loses_its_line) {
  const std::string train = line(4, 2);
  const std::string validation = to_json({4, 4, 1, {{"val/loss", 3}}}) + "\n";
  put(train + validation);
  { MetricsWriter writer(directory_.path(), 4, false, 4); }
  EXPECT_EQ(text(), train + validation);
  { MetricsWriter writer(directory_.path(), 4, false, 2); }
  EXPECT_EQ(text(), train);
  // A validation without held-out text has task results only.
  put(train + to_json({4, 4, 1, {{"eval/hellaswag/accuracy", 0.3}}}) + "\n");
  { MetricsWriter writer(directory_.path(), 4, false, 2); }
  EXPECT_EQ(text(), train);
}

// A hole of 1 TB, which no memory holds, stands in for the lines of a long run.
TEST_F(Metrics, a_resumed_run_reads_the_end_of_the_file_only) {
  constexpr uint64_t kHole = uint64_t{1} << 40;
  const fs::path path = directory_ / "metrics.jsonl";
  put("");
  fs::resize_file(path, kHole);
  const std::string kept = "\n" + line(3, 0.5) + line(4, 2);
  const std::string seconds = to_json({4, 4, 1, {{"throughput/seconds", 2.5}}}) + "\n";
  std::ofstream(path, std::ios::app) << kept << seconds << line(5, 3) << line(6, 3);
  { MetricsWriter writer(directory_.path(), 4, false); }
  EXPECT_EQ(fs::file_size(path), kHole + kept.size() + seconds.size());
  EXPECT_EQ(last_value(directory_.path(), "throughput/seconds"), 2.5);
}

TEST_F(Metrics, keeps_the_lines_before_the_end_it_reads) {
  std::string text_before;
  for (int64_t step = 1; step <= 4000; ++step) text_before += line(step, 1.0 / 3.0);
  ASSERT_GT(text_before.size(), size_t{3} << 16);
  put(text_before + line(4001, 2) + R"({"step":4002,"tok)" + "\n" + line(4001, 3));
  { MetricsWriter writer(directory_.path(), 4001, false); }
  EXPECT_EQ(text(), text_before + line(4001, 2) + line(4001, 3));
  { MetricsWriter writer(directory_.path(), 100, false); }
  EXPECT_EQ(text(), text_before.substr(0, text_before.find(line(101, 1.0 / 3.0))));
}

TEST_F(Metrics, a_run_from_the_start_keeps_nothing) {
  put(line(0, 2) + line(1, 3));
  write_all(-1, 1, 1);
  EXPECT_EQ(text(), line(1, 1));
}

TEST_F(Metrics, a_torn_last_line_goes_wherever_it_was_torn) {
  const std::string torn = line(3, 0.125);
  for (size_t size = 0; size < torn.size(); size += 7) {
    put(line(1, 1) + line(2, 0.5) + torn.substr(0, size));
    write_all(3, 4, 3);
    ASSERT_EQ(text(), line(1, 1) + line(2, 0.5)) << size << " bytes of the last line";
  }
}

TEST_F(Metrics, a_torn_line_within_the_kept_steps_goes_too) {
  put(line(1, 1) + R"({"step":2,"tok)" + std::string(9, '\0') + "\n" + line(2, 0.5));
  write_all(2, 3, 2);
  EXPECT_EQ(text(), line(1, 1) + line(2, 0.5));
}

TEST_F(Metrics, a_missing_directory_is_a_data_error_naming_the_file) {
  const auto message = error_of<DataError>([&] { MetricsWriter writer(directory_ / "absent", -1, false); });
  EXPECT_NE(message.find("absent/metrics.jsonl"), std::string::npos) << message;
}

TEST_F(Metrics, a_forbidden_directory_is_a_data_error_with_the_systems_reason) {
  const ForbiddenDirectory forbidden(directory_.path());
  const auto message = error_of<DataError>([&] { MetricsWriter writer(directory_.path(), -1, false); });
  EXPECT_NE(message.find("metrics.jsonl: cannot read its status: Permission denied"), std::string::npos)
      << message;
}

// Limits the size of files, which stands in for a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(Metrics, a_line_that_does_not_fit_is_a_data_error_and_does_not_outlive_the_resume) {
  const std::string first = line(1, 1);
  {
    MetricsWriter writer(directory_.path(), -1, false);
    const FileSizeLimit limit(first.size() + 10);
    writer.write(record(1, 1));
    const auto message = error_of<DataError>([&] { writer.write(record(2, 0.5)); });
    EXPECT_NE(message.find("metrics.jsonl: cannot write: File too large"), std::string::npos) << message;
  }
  write_all(1, 2, 2);
  EXPECT_EQ(text(), first + line(2, 0.5));
}

TEST_F(Metrics, an_event_that_does_not_fit_is_a_data_error) {
  MetricsWriter writer(directory_.path(), -1, true);
  MetricRecord large{1, 1, 1, {}};
  for (int i = 0; i < 200; ++i) large.values.emplace_back(std::string(1, static_cast<char>('a' + i % 26)), 0);
  const FileSizeLimit limit(to_json(large).size() + 1);  // the JSON line fits, the event is longer
  const auto message = error_of<DataError>([&] { writer.write(large); });
  EXPECT_NE(message.find("events.out.tfevents."), std::string::npos) << message;
}

TEST_F(Metrics, event_files_of_one_second_have_names_of_their_own) {
  for (int i = 0; i < 3; ++i) MetricsWriter(directory_.path(), 0, true).write(record(1, i));
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    if (entry.path().filename() != "metrics.jsonl") names.push_back(entry.path().filename().string());
  }
  EXPECT_EQ(names.size(), 3U);
}

}  // namespace
}  // namespace dtopp::runs
