// Stands in for a training run in tests that make its system calls fail, kill it or cut its power.
//
//   checkpoint_driver save RUN KEEP ITEM…
//     Saves checkpoints below RUN and prints "saved ITEM" when each item is durable. ITEM is a step; "30v"
//     for another state of step 30; "=TEXT" for a text to write to RUN/config.yaml; "+TEXT" for a text to
//     write, without a sync, to both files of the directory RUN/tree.
//   checkpoint_driver check RUN…
//     Prints a JSON object per line: the steps that verify and hold what was saved, the step from which a run
//     would resume, and the error.
//   checkpoint_driver resume RUN…
//     Prints the same for runs that resume.
#include <cstdio>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/runs/run_directory.h"
#include "tests/base/log_text.h"
#include "tests/checkpoint/checkpoint_contents.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;

void write_unsynced(const fs::path& path, std::string_view text) {
  Descriptor file(path, O_WRONLY | O_CREAT, "create");
  while (!text.empty()) {
    const auto count = retry([&] { return ::write(file.get(), text.data(), text.size()); });
    if (count < 0) throw file_error("write", path, errno);
    text.remove_prefix(count);
  }
  file.close();
}

void write_tree(const fs::path& path, const std::string& text) {
  const auto fill = [&](const fs::path& directory) {
    make_directories(directory / "nested");
    write_unsynced(directory / "nested/a", text);
    write_unsynced(directory / "b", text);
  };
  write_directory_atomically(path, fill, /*replace=*/true);
}

void save_item(const fs::path& run, int64_t keep, const std::string& item) {
  if (item.front() == '=') {
    make_directories(run);
    write_file_atomically(run / "config.yaml", item.substr(1));
  } else if (item.front() == '+') {
    write_tree(run / "tree", item.substr(1));
  } else {
    checkpoint::SampleContents sample(std::stoll(item));
    if (item.back() == 'v') sample.contents.state.last_validation_step = sample.contents.state.step;
    const uint64_t shard_bytes = item.back() == 's' ? 48 : uint64_t{4} << 30;
    checkpoint::save_checkpoint(run / "checkpoints", sample.contents, keep, shard_bytes);
  }
  const auto line = "saved " + item + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

nlohmann::json check_run(const fs::path& run) {
  nlohmann::json result = {{"steps", nlohmann::json::array()},
                           {"newest", nullptr},
                           {"tree", nullptr},
                           {"wrong", nlohmann::json::array()}};
  const auto wrong = [&](const std::string& what) { result["wrong"].push_back(what); };
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", absent)) {
    const auto name = entry.path().filename().string();
    if (!name.starts_with("step-")) continue;
    try {
      const checkpoint::Checkpoint checkpoint(entry.path());
      checkpoint::SampleContents expected(std::stoll(name.substr(5)));
      expected.contents.state.last_validation_step = checkpoint.state().last_validation_step;
      if (!checkpoint::holds(checkpoint, expected.contents)) wrong(name + " holds something else");
      result["steps"].push_back(checkpoint.state().step);
    } catch (const std::exception& error) {
      wrong(error.what());
    }
  }
  if (fs::exists(run / "tree", absent)) {
    const auto text = read_file(run / "tree/b");
    if (read_file(run / "tree/nested/a") != text) wrong("tree: its files differ");
    result["tree"] = text;
  }
  try {
    const LogText warnings;
    const auto newest = runs::newest_checkpoint(run / "checkpoints", warnings.log());
    for (const std::string& warning : warnings.lines()) wrong(warning);
    if (newest) result["newest"] = newest->state().step;
  } catch (const CheckpointError& error) {
    wrong(error.what());
  }
  return result;
}

void put_back(const fs::path& run) {
  for (const fs::path& folder : {run, run / "checkpoints"}) {
    if (fs::exists(folder)) put_back_replaced(folder);
  }
}

int run_driver(const std::vector<std::string>& arguments) {
  const bool resumes = arguments.at(0) == "resume";
  if (resumes || arguments.at(0) == "check") {
    for (size_t i = 1; i < arguments.size(); ++i) {
      if (resumes) put_back(arguments[i]);
      std::printf("%s\n", check_run(arguments[i]).dump().c_str());
    }
  } else {
    for (size_t i = 3; i < arguments.size(); ++i)
      save_item(arguments.at(1), std::stoll(arguments.at(2)), arguments[i]);
  }
  return 0;
}

}  // namespace
}  // namespace dtopp

int main(int count, char** arguments) {
  try {
    return dtopp::run_driver({arguments + 1, arguments + count});
  } catch (const dtopp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.status());
  }
}
