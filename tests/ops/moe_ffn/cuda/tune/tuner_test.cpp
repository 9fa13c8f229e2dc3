// Tests the choice of fused kernels. The child processes answer correctly or wrongly, crash, hang or print
// rubbish.
#include "dtopp/ops/moe_ffn/cuda/tune/tuner.h"

#include <fstream>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::ops::tuner_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TunedGemm checked(double fused_error, double fused_milliseconds) {
  return {.fused_error = fused_error, .fused_milliseconds = fused_milliseconds, .grouped_milliseconds = 1.03};
}

TEST(TunedGemm, takes_fused_kernels_that_are_right_and_three_percent_faster) {
  EXPECT_TRUE(checked(0, 1).takes_fused());
  EXPECT_TRUE(checked(1.0 / 64, 0.2).takes_fused());
  EXPECT_FALSE(checked(0, 1.001).takes_fused());
  EXPECT_FALSE(checked(1.0 / 63, 0.2).takes_fused());
  EXPECT_FALSE(checked(std::numeric_limits<double>::quiet_NaN(), 0.2).takes_fused());
  EXPECT_FALSE(checked(std::numeric_limits<float>::max(), 0.2).takes_fused());
  TunedGemm failed = checked(0, 0.2);
  failed.failure = "did not end within 60 s";
  EXPECT_FALSE(failed.takes_fused());
}

std::string answer(const std::string& gemm, double fused_error, double fused_milliseconds) {
  return R"({"gemm": ")" + gemm + R"(", "fused_error": )" + std::to_string(fused_error) +
         R"(, "grouped_error": 0.004, "fused_milliseconds": )" + std::to_string(fused_milliseconds) +
         R"(, "grouped_milliseconds": 1.0})";
}

std::string json_line(const std::string& line) { return "echo '" + line + "'"; }

using Scripts = std::map<std::string, std::string>;

std::vector<std::string> printed;

// Children are shell scripts: the script of the named GEMM, otherwise one that reports that the fused kernel
// is good.
class Check {
 public:
  explicit Check(const Scripts& scripts = {}) {
    printed.clear();
    std::string script = "echo $1=$3 >>" + log().string() + "; case $1 in ";
    for (const std::string_view known : kExpertGemmNames) {
      const std::string name(known);
      const auto found = scripts.find(name);
      script += name + ") " + (found == scripts.end() ? json_line(answer(name, 0.004, 0.5)) : found->second) +
                ";; ";
    }
    tuner.device = {"NVIDIA H200", 13000, "0123abcd"};
    tuner.directory = scratch_ / "cache";
    tuner.child = {.program = "/bin/sh",
                   .arguments = {"sh", "-c", script + "esac", "check-gemm"},
                   .environment = {"PATH=/bin:/usr/bin"}};
    tuner.limit = 20s;
    tuner.print = [](const std::string& text) { printed.push_back(text); };
  }

  std::string taken() const {
    const auto table = tune_kernels(tuner);
    return table ? fused_kernels_text(taken_kernels(*table)) : "not checked";
  }
  std::filesystem::path log() const { return scratch_ / "children"; }
  size_t children() const {
    std::ifstream file(log());
    return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
  }
  std::filesystem::path table() const { return kernel_table_path(tuner.directory, tuner.device); }
  static std::string warnings() {
    std::string all;
    for (const auto& text : printed)
      if (text.starts_with("warning: ")) all += text + "\n";
    return all;
  }

  Tuner tuner;

 private:
  ScratchDirectory scratch_;
};

const std::string kAll = fused_kernels_text(~FusedKernelSet());

TEST(Tuner, takes_what_is_right_and_faster_and_prints_it_once) {
  Check here(Scripts{{"projection", json_line(answer("projection", 0.004, 0.99))}});
  const std::string taken = "activation,activation_gradient,input_gradient,down_gradient,gate_up_gradient";
  EXPECT_EQ(here.taken(), taken);
  EXPECT_THAT(printed,
              ElementsAre(HasSubstr("on NVIDIA H200"),
                          HasSubstr("activation fused (fused 0.5 ms, grouped_mm 1 ms), projection grouped_mm "
                                    "(fused 0.99 ms, grouped_mm 1 ms), activation_gradient fused")));
  printed.clear();
  EXPECT_EQ(here.taken(), taken);
  EXPECT_THAT(printed, IsEmpty());
  EXPECT_EQ(here.children(), 6U);
}

// A GEMM's time depends on the state that earlier GEMMs leave.
TEST(Tuner, passes_the_fused_kernels_so_far_to_each_child) {
  Check here(Scripts{{"projection", "exit 1"}});
  here.taken();
  EXPECT_EQ(read_file(here.log()),
            "activation=grouped_mm\nprojection=activation\nactivation_gradient=activation\n"
            "input_gradient=activation,activation_gradient\n"
            "down_gradient=activation,activation_gradient,input_gradient\n"
            "gate_up_gradient=activation,activation_gradient,input_gradient,down_gradient\n");
}

TEST(Tuner, warns_of_what_is_wrong_crashes_hangs_or_cannot_be_read) {
  Check here(Scripts{{"activation", json_line(answer("activation", 0.5, 0.1))},
                     {"projection", "kill -SEGV $$"},
                     {"activation_gradient", "sleep 100"},
                     {"input_gradient", "echo rubbish; echo '{\"gemm\": 7'"},
                     {"down_gradient", "echo 'dtopp: error: an illegal memory access'; exit 5"}});
  here.tuner.limit = 500ms;
  EXPECT_EQ(here.taken(), "gate_up_gradient");
  const std::string warnings = here.warnings();
  for (const char* text :
       {"activation uses grouped_mm", "NVIDIA H200: an error of 0.5\n", "NVIDIA H200: killed by signal 11",
        "NVIDIA H200: did not end within 0.5 s\n", "NVIDIA H200: no readable answer\n",
        "NVIDIA H200: ended with status 5: an illegal memory access\n"})
    EXPECT_THAT(warnings, HasSubstr(text));
  EXPECT_EQ(std::ranges::count(warnings, '\n'), 5);
  printed.clear();
  EXPECT_EQ(here.taken(), "gate_up_gradient");  // the result is stored: nothing crashes twice
  EXPECT_THAT(printed, IsEmpty());
}

TEST(Tuner, finds_the_answer_among_other_lines) {
  Check here(
      Scripts{{"activation", "echo '{\"none\": 1}'; " + json_line(answer("activation", 0.004, 0.5)) +
                                 "; echo '[W1 warning of torch] {}'"},
              {"projection", json_line(answer("activation", 0.004, 0.5))}});  // an answer for another GEMM
  EXPECT_EQ(here.taken(), "activation,activation_gradient,input_gradient,down_gradient,gate_up_gradient");
  EXPECT_THAT(here.warnings(), HasSubstr("projection uses grouped_mm"));
}

TEST(Tuner, keeps_nothing_where_the_device_could_not_be_used) {
  Check here(Scripts{{"input_gradient", json_line(R"({"unchecked": "no memory is free"})")}});
  EXPECT_EQ(here.taken(), "not checked");
  EXPECT_THAT(here.warnings(),
              HasSubstr("the check cannot run now, so grouped_mm is used: no memory is free"));
  EXPECT_FALSE(std::filesystem::exists(here.table()));
  EXPECT_EQ(here.children(), 4U);
}

TEST(Tuner, checks_again_for_another_device_driver_or_library) {
  Check here;
  EXPECT_EQ(here.taken(), kAll);
  const TunedDevice first = here.tuner.device;
  size_t children = 6;
  for (const TunedDevice& other :
       {TunedDevice{"NVIDIA A100", first.driver, first.library},
        TunedDevice{first.name, 13010, first.library}, TunedDevice{first.name, first.driver, "4567"}}) {
    here.tuner.device = other;
    EXPECT_EQ(here.taken(), kAll);
    EXPECT_EQ(here.children(), children += 6);
  }
  here.tuner.device = first;
  EXPECT_EQ(here.taken(), kAll);
  EXPECT_EQ(here.children(), children);
  EXPECT_TRUE(tune_kernels(here.tuner, /*again=*/true));
  EXPECT_EQ(here.children(), children + 6);
}

TEST(Tuner, checks_again_where_the_table_is_damaged) {
  Check here;
  here.taken();
  const std::string whole = read_file(here.table());
  const auto without = [&](std::string text, const std::string& part, const std::string& instead) {
    return text.replace(text.find(part), part.size(), instead);
  };
  size_t children = 6;
  for (const std::string& damaged :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"), without(whole, "H200", "H100"),
        without(whole, "projection", "activation"), without(whole, "0.5", "\"fast\""),
        without(whole, "fused_error", "error"), std::string(1 << 17, ' ') + whole}) {
    write_file_atomically(here.table(), damaged);
    EXPECT_EQ(here.taken(), kAll);
    EXPECT_EQ(here.children(), children += 6) << damaged.substr(0, 200);
    EXPECT_EQ(read_file(here.table()), whole);
  }
}

TEST(Tuner, without_a_place_to_keep_it_checks_each_time) {
  Check here;
  const std::filesystem::path file = here.log().parent_path() / "file";
  std::ofstream(file) << "in the way";
  for (const std::filesystem::path& directory : {std::filesystem::path(), file / "cache"}) {
    here.tuner.directory = directory;
    const size_t before = here.children();
    EXPECT_EQ(here.taken(), kAll);
    EXPECT_EQ(here.taken(), kAll);
    EXPECT_EQ(here.children(), before + 12);
    EXPECT_THAT(here.warnings(), HasSubstr("every start will check again: "));
  }
  EXPECT_EQ(stored_kernels(here.tuner), std::nullopt);
}

TEST(Tuner, is_made_by_one_of_several_at_once) {
  Check here;
  std::vector<std::string> taken(4);
  {
    std::vector<std::jthread> starts;
    for (std::string& mine : taken) {
      starts.emplace_back([&] {
        Tuner own = here.tuner;
        own.print = [](const std::string& /*text*/) {};
        mine = fused_kernels_text(taken_kernels(*tune_kernels(own)));
      });
    }
  }
  EXPECT_THAT(taken, ElementsAre(kAll, kAll, kAll, kAll));
  EXPECT_EQ(here.children(), 6U);
}

TEST(Tuner, is_kept_below_the_cache_that_the_environment_names) {
  const auto directory = [](const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    };
    const char* home_before = std::getenv("HOME");
    const std::string kept = home_before == nullptr ? "" : home_before;
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    const auto found = kernel_table_directory();
    set("XDG_CACHE_HOME", nullptr);
    set("HOME", home_before == nullptr ? nullptr : kept.c_str());
    return found;
  };
  EXPECT_EQ(directory("/fast/cache", "/home/a"), "/fast/cache/dtopp");
  EXPECT_EQ(directory(nullptr, "/home/a"), "/home/a/.cache/dtopp");
  EXPECT_EQ(directory("not/absolute", "/home/a"), "/home/a/.cache/dtopp");
  EXPECT_EQ(directory("", nullptr), "");
}

}  // namespace
}  // namespace dtopp::ops::tuner_test
