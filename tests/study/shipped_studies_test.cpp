// Tests every file of configs/studies.
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/study/definition.h"

namespace dtopp::study {
namespace {

const std::filesystem::path kStudies = std::filesystem::path(DTOPP_SOURCE_DIR) / "configs/studies";

TEST(ShippedStudies, have_runs_that_can_be_and_differ) {
  std::map<std::string, std::set<std::string>> names;  // by size
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kStudies)) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path());
    const std::string size = entry.path().parent_path().filename(), name = entry.path().stem();
    const Study study = load_study(entry.path(), {});
    const std::vector<StudyRun> runs = expand(study);
    EXPECT_EQ(study.output, std::filesystem::path("studies") / size / name);
    size_t expected = 0;
    for (const Variant& variant : study.variants)
      expected += study.points.size() * (variant.only.empty() ? study.seeds : variant.only).size();
    EXPECT_EQ(runs.size(), expected);
    // The paper has one run of each. A registered study chooses its seeds in its protocol.
    const bool registered = exists(entry.path().parent_path() / "PROTOCOL.md");
    EXPECT_GE(study.seeds.size(), size == "paper" || registered ? 1U : 3U);
    std::set<std::string> hashes;
    for (const StudyRun& run : runs) hashes.insert(run.hash);
    EXPECT_EQ(hashes.size(), runs.size()) << "two variants are the same";
    names[size].insert(name);
  }
  EXPECT_THAT(names, testing::SizeIs(7));
  // Every study exists in each other size than the quick start, except for questions about the small models.
  EXPECT_EQ(names["gpu"], names["paper"]);
  for (const char* small : {"balance", "top-k-or-dtop-p"}) names["lab"].erase(small);
  EXPECT_EQ(names["lab"], names["gpu"]);
}

}  // namespace
}  // namespace dtopp::study
