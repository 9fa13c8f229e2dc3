#include "dtopp/study/run_folder.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp::study {
namespace {

constexpr uint64_t kMaxRecordBytes = 1 << 16;

fs::path record_of(const fs::path& directory) { return directory / "study-run.json"; }

std::optional<JsonFields> read_fields(const fs::path& directory) {
  const fs::path path = record_of(directory);
  if (path_kind(path) == PathKind::kNothing) return std::nullopt;
  return JsonFields(read_file(path, kMaxRecordBytes), path.string());
}

// The checksum in a record, which becomes part of a folder's name; empty if the record holds other text.
std::string hash_in(const JsonFields& record) {
  std::string hash = record.text("config_hash");
  return hash.find_first_not_of("0123456789abcdef") == hash.npos ? hash : "";
}

struct Content {
  bool is_same = false;      // the folder holds the requested run
  std::string hash{};        // checksum of the other run
  std::string difference{};  // why it is another run; empty: the folder holds no step of another run
};

// A run stores its whole configuration at its first step, and that is compared key by key. Before the
// first step only the checksum in the record is available.
Content content_of(const StudyRun& run, const std::optional<JsonFields>& record) {
  const std::string recorded = record ? hash_in(*record) : "";
  std::optional<config::RunConfig> there;
  try {
    there = runs::config_of(run.directory);
  } catch (const UsageError&) {
    return {.hash = recorded.empty() ? "unknown" : recorded,
            .difference = "this version of dtopp cannot read it"};
  }
  if (!there) return {.is_same = recorded == run.hash};
  Content content;
  for (const std::string& key : changed_keys(*there, run.config))
    content.difference += (content.difference.empty() ? "differs in " : ", ") + key;
  content.is_same = content.difference.empty();
  content.hash = hash_of(*there);
  return content;
}

fs::path earlier_folder(const StudyRun& run, const std::string& hash) {
  return run.directory.parent_path().parent_path() / "earlier" /
         (run.name + "-" + hash.substr(0, kShortHash));
}

std::string move_aside(const StudyRun& run, const Content& content) {
  const fs::path base = earlier_folder(run, content.hash);
  fs::path aside = base;
  for (int more = 2; path_kind(aside) != PathKind::kNothing; ++more)
    aside = base.string() + "-" + std::to_string(more);
  make_directories(aside.parent_path());
  std::error_code error;
  fs::rename(run.directory, aside, error);
  if (error) throw file_error("move", run.directory, error.value());
  return run.directory.string() + ": holds a run with another configuration (" + content.difference +
         "); moved to " + aside.string();
}

}  // namespace

std::string to_text(const AfterCommand& command) { return command.name + ": " + command.line; }

size_t commands_done(const RunRecord& record, const std::vector<AfterCommand>& after) {
  const auto is_same = [](const std::string& done, const AfterCommand& now) { return done == to_text(now); };
  return static_cast<size_t>(std::ranges::mismatch(record.after, after, is_same).in2 - after.begin());
}

bool is_complete(const RunRecord& record, const std::vector<AfterCommand>& after) {
  return record.status == RunStatus::kDone && commands_done(record, after) == after.size();
}

RunRecord read_record(const StudyRun& run) {
  const auto fields = read_fields(run.directory);
  if (!fields || !content_of(run, fields).is_same) return {};
  const std::string text = fields->text("status");
  const auto status = enum_named<RunStatus>(text);
  if (!status) fields->fail("status", "expected pending, done or failed, got '", text, "'");
  return {*status, fields->get<std::string>("cause", ""), fields->numbers("seconds").front(),
          fields->get<std::vector<std::string>>("after", {})};
}

bool holds_run(const fs::path& directory, const std::string& hash) {
  const auto record = read_fields(directory);
  return record && record->text("config_hash") == hash;
}

void write_record(const StudyRun& run, const RunRecord& record) {
  ordered_json json = {
      {"config_hash", run.hash}, {"status", enum_name(record.status)}, {"seconds", record.seconds}};
  if (!record.cause.empty()) json["cause"] = record.cause;
  if (!record.after.empty()) json["after"] = record.after;
  write_file_atomically(record_of(run.directory), dump_json(json, 2) + "\n");
}

std::vector<std::string> prepare_folder(const StudyRun& run) {
  std::vector<std::string> moves;
  const Content content = content_of(run, read_fields(run.directory));
  if (!content.difference.empty()) moves.push_back(move_aside(run, content));
  const fs::path earlier = earlier_folder(run, run.hash);
  if (path_kind(run.directory) == PathKind::kNothing && path_kind(earlier) == PathKind::kDirectory) {
    make_directories(run.directory.parent_path());
    rename_durably(earlier, run.directory);
    moves.push_back(run.directory.string() + ": restored from " + earlier.string());
  }
  make_directories(run.directory);
  write_file_atomically(config_of_run(run), config::to_yaml(run.config));
  return moves;
}

int64_t last_step(const StudyRun& run) {
  constexpr off_t kTail = 1 << 17;
  constexpr std::string_view kLineStart = "\n{\"step\":";
  const fs::path path = metrics_of_run(run);
  if (path_kind(path) == PathKind::kNothing || !content_of(run, read_fields(run.directory)).is_same) return 0;
  const Descriptor file = open_regular(path);
  const off_t size = static_cast<off_t>(file.size());
  const off_t begin = std::max<off_t>(0, size - kTail);
  if (::lseek(file.get(), begin, SEEK_SET) < 0) throw file_error("read", path, errno);
  std::string tail(static_cast<size_t>(size - begin) + 1, '\n');
  tail.resize(file.read(tail.data() + 1, tail.size() - 1) + 1);
  const size_t start = tail.rfind(kLineStart);
  if (start == std::string::npos) return 0;
  int64_t step = 0;
  const char* digits = tail.data() + start + kLineStart.size();
  std::from_chars(digits, tail.data() + tail.size(), step);
  return step;
}

}  // namespace dtopp::study
