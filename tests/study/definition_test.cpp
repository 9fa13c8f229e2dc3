#include "dtopp/study/definition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "tests/study/study_files.h"

namespace dtopp::study {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

std::string grid_text(const StudyRun& run, const Study& study) {
  return dump_json(to_json(study.points[run.point]));
}

class StudyDefinition : public StudyFiles {};

TEST_F(StudyDefinition, gives_every_variant_at_every_point_with_every_seed) {
  const Study study = load(kHead +
                           "seeds: [2, 1]\n"
                           "variants: {top-k: {routing.method: top_k}, dtop-p: {routing: {method: dtop_p}}}\n"
                           "grid: {model.num_experts: [4, 8]}\n");
  const auto runs = expand(study);
  std::vector<std::string> names;
  for (const auto& run : runs) names.push_back(run.name);
  EXPECT_THAT(names, ElementsAre("top-k-num_experts-4-seed2", "dtop-p-num_experts-4-seed2",
                                 "top-k-num_experts-8-seed2", "dtop-p-num_experts-8-seed2",
                                 "top-k-num_experts-4-seed1", "dtop-p-num_experts-4-seed1",
                                 "top-k-num_experts-8-seed1", "dtop-p-num_experts-8-seed1"));
  EXPECT_EQ(runs[6].config.model.num_experts, 8);
  EXPECT_EQ(runs[6].config.routing.method, config::RoutingMethod::kTopK);
  EXPECT_EQ(runs[6].config.training.seed, 1);
  EXPECT_EQ(runs[6].config.name, runs[6].name);
  EXPECT_EQ(runs[6].config.output, "out/runs/" + runs[6].name);
  EXPECT_EQ(grid_text(runs[6], study), R"({"model.num_experts":8})");
}

TEST_F(StudyDefinition, without_variants_grid_and_seeds_is_the_base) {
  const auto runs = expand(load(kHead));
  ASSERT_THAT(runs, SizeIs(1));
  EXPECT_EQ(runs[0].name, "base-seed7");
  EXPECT_EQ(runs[0].config.training.seed, 7);
}

TEST_F(StudyDefinition, lists_of_zip_advance_together_inside_the_grid) {
  const Study study = load(kHead +
                           "grid: {model.num_experts: [4, 8]}\n"
                           "zip: {model.hidden_size: [16, 32], optimizer.lr: [1.0e-2, 5.0e-3]}\n");
  std::vector<std::string> grids;
  for (const auto& run : expand(study)) grids.push_back(grid_text(run, study));
  EXPECT_THAT(grids, ElementsAre(R"({"model.num_experts":4,"model.hidden_size":16,"optimizer.lr":0.01})",
                                 R"({"model.num_experts":4,"model.hidden_size":32,"optimizer.lr":0.005})",
                                 R"({"model.num_experts":8,"model.hidden_size":16,"optimizer.lr":0.01})",
                                 R"({"model.num_experts":8,"model.hidden_size":32,"optimizer.lr":0.005})"));
  EXPECT_THAT(refusal(kHead + "zip: {model.hidden_size: [16, 32],\n  optimizer.lr: [1.0e-2]}\n"),
              HasSubstr("optimizer.lr has 1 values and model.hidden_size 2"));
}

TEST_F(StudyDefinition, arguments_replace_the_studys_own_or_are_laid_over_the_base) {
  const auto runs =
      expand(load(kHead + "seeds: [1, 2, 3]\n", {"seeds=[5]", "output=there", "training.steps=9"}));
  ASSERT_THAT(runs, SizeIs(1));
  EXPECT_EQ(runs[0].config.training.steps, 9);
  EXPECT_EQ(runs[0].directory, "there/runs/base-seed5");
}

TEST_F(StudyDefinition, only_gives_a_variant_some_of_the_seeds) {
  const std::string study = kHead + "seeds: [1, 2, 3]\nvariants: {a: {}, b: {}}\n";
  std::vector<std::string> names;
  for (const auto& run : expand(load(study + "only: {b: [2, 3]}\n", {"seeds=[1, 2]"})))
    names.push_back(run.name);
  EXPECT_THAT(names, ElementsAre("a-seed1", "a-seed2", "b-seed2"));
  EXPECT_THAT(refusal(study + "only: {c: [2]}\n"), HasSubstr("only: no variant is named 'c'"));
  EXPECT_THAT(refusal(study + "only: {b: [4]}\n"), HasSubstr("only.b: 4 is no seed of the study"));
  EXPECT_THAT(refusal(study + "only: {b: []}\n"), HasSubstr("only.b: is empty"));
}

TEST_F(StudyDefinition, arguments_select_variants_and_change_one) {
  const std::string study = kHead + "variants: {a: {routing.experts: 3}, a.b: {}, c: {}}\n";
  const auto runs = expand(
      load(study, {"variants=[a, a.b]", "variants.a.routing.experts=4", "variants.a.b.optimizer.lr=0.5"}));
  EXPECT_EQ(runs.at(0).config.routing.experts, std::vector<double>{4});
  EXPECT_EQ(runs.at(1).config.routing.experts, std::vector<double>{2});
  EXPECT_EQ(runs.at(1).config.optimizer.lr, 0.5);
  EXPECT_NE(runs.at(0).config.optimizer.lr, 0.5);
  EXPECT_TRUE(runs.at(0).selected && runs.at(1).selected);
  EXPECT_FALSE(runs.at(2).selected);
  EXPECT_THAT(refusal(study, {"variants=[d]"}), HasSubstr("no variant is named 'd'"));
  EXPECT_THAT(refusal(study, {"variants.d.optimizer.lr=1"}), HasSubstr("no variant is named 'd'"));
  EXPECT_THAT(refusal(study, {"variants.a.optimizer.lrr=1"}), HasSubstr("did you mean optimizer.lr?"));
}

TEST_F(StudyDefinition, refuses_comparisons_that_cannot_be_made) {
  const auto with = [&](const std::string& entry) {
    return refusal(kHead + "variants: {a: {}, b: {}}\ncompare: [" + entry + "]\n");
  };
  EXPECT_THAT(with("{name: x, of: a, less: b, measure: train/loss, family: f, margin: 0.1}"), IsEmpty());
  EXPECT_THAT(with("{name: x, of: a, less: c, measure: train/loss}"), HasSubstr("no variant is named 'c'"));
  EXPECT_THAT(with("{name: x, of: a, less: b, measure: val/loss}"),
              HasSubstr("compare: 'x': val/loss is no measure of the study"));
  EXPECT_THAT(with("{name: x, of: a, measure: train/loss}"), HasSubstr("less: is missing"));
  EXPECT_THAT(with("{name: x, of: a, less: b, measure: train/loss, margn: 1}"),
              HasSubstr("did you mean margin?"));
  EXPECT_THAT(with("{name: x, of: a, less: b, measure: train/loss, over: {of: b, less: a}, family: f}"),
              HasSubstr("a ratio has no test"));
  EXPECT_THAT(refusal(kHead + "variants: {a: {}, b: {}}\ngrid: {model.num_experts: [4, 8]}\n"
                              "compare: [{name: x, of: a, less: b, measure: train/loss}]\n"),
              HasSubstr("a study with a grid or zip"));
}

TEST_F(StudyDefinition, a_ledger_in_the_file_is_relative_to_the_file) {
  const Study study = load(kHead + "ledger: ../there/text.json\n");
  EXPECT_EQ(study.ledger, (directory_ / "../there/text.json").lexically_normal());
  EXPECT_EQ(load(kHead, {"ledger=here.json"}).ledger, "here.json");
}

TEST_F(StudyDefinition, names_what_it_does_not_know_with_its_line_and_the_nearest_key) {
  EXPECT_THAT(refusal(kHead + "variants:\n  a: {}\n  b: {routing.methd: top_k}\n"),
              MatchesRegex(".*/study.yaml:6: unknown key 'routing.methd'; did you mean routing.method\\?"));
  EXPECT_THAT(refusal(kHead + "varants: {a: {}}\n"), HasSubstr("study.yaml:4: unknown key 'varants'; did you "
                                                               "mean variants?"));
  EXPECT_THAT(refusal(kHead + "grid: {model.num_expert: [4]}\n"),
              HasSubstr("did you mean model.num_experts?"));
  EXPECT_THAT(refusal(kHead, {"training.stepz=4"}), HasSubstr("did you mean training.steps?"));
}

TEST_F(StudyDefinition, refuses_the_configuration_of_a_run) {
  EXPECT_THAT(refusal("base: base.yaml\nmodel: {num_layers: 2}\n"),
              MatchesRegex(".*/study.yaml:2: model: belongs to the configuration of a run, .*dtopp train"));
}

TEST_F(StudyDefinition, refuses_what_would_set_one_key_twice) {
  EXPECT_THAT(refusal(kHead + "variants: {a: {model: {num_experts: 4}}}\ngrid: {model.num_experts: [4]}\n"),
              HasSubstr("study.yaml:4: model.num_experts: conflicts with the value that grid sets"));
  EXPECT_THAT(refusal(kHead + "variants: {a: {training.seed: 4}}\n"),
              HasSubstr("conflicts with the value that the study itself sets"));
  EXPECT_THAT(
      refusal(kHead + "variants: {a: {routing.method: top_k}}\n", {"routing.method=dtop_p"}),
      HasSubstr(
          "argument 'routing.method=dtop_p': routing.method: conflicts with the value that variant a sets"));
  EXPECT_THAT(refusal(kHead + "variants: {a: {routing.method: top_k}}\n", {"routing={method: dtop_p}"}),
              HasSubstr("routing: conflicts with the value that variant a sets"));
}

TEST_F(StudyDefinition, settings_and_arguments_win_over_a_variants_method) {
  write_file_atomically(
      directory_ / "preset.yaml",
      "base: base.yaml\n"
      "methods: {fixed: {routing: {method: top_p, threshold: 0.5, normalization: fixed}}}\n");
  const std::string head = "base: preset.yaml\nmeasure: [train/loss]\noutput: out\n";
  const auto runs = expand(load(head + "variants: {a: {routing.threshold: 0.3, method: fixed}}\n"
                                       "grid: {routing.renormalize: [true, false]}\n",
                                {"routing.normalization=none"}));
  EXPECT_EQ(runs.at(1).config.routing.method, config::RoutingMethod::kTopP);
  EXPECT_EQ(runs.at(1).config.routing.threshold, 0.3);
  EXPECT_EQ(runs.at(1).config.routing.normalization, config::Normalization::kNone);
  EXPECT_EQ(runs.at(1).config.routing.renormalize, config::Renormalize::kNo);
}

TEST_F(StudyDefinition, refuses_what_is_missing_or_of_the_wrong_kind) {
  EXPECT_THAT(refusal("measure: [train/loss]\noutput: out\n"),
              HasSubstr("base: is missing; name the configuration"));
  EXPECT_THAT(refusal("base: base.yaml\noutput: out\n"), HasSubstr("measure: is missing"));
  EXPECT_THAT(refusal("base: base.yaml\nmeasure: [train/loss]\n"), HasSubstr("output: is missing"));
  EXPECT_THAT(refusal("base: none.yaml\nmeasure: [train/loss]\noutput: out\n"),
              MatchesRegex(".*study.yaml:1: base: .*/none.yaml: there is no such configuration file"));
  EXPECT_THAT(refusal(kHead + "variants: []\n"), HasSubstr("variants: expected variants by name"));
  EXPECT_THAT(refusal(kHead + "variants: {a: 3}\n"),
              HasSubstr("variants.a: expected the variant's settings"));
  EXPECT_THAT(refusal(kHead + "grid: {model.num_experts: 4}\n"), HasSubstr("expected a list of values"));
  EXPECT_THAT(refusal(kHead + "seeds: [1, 1]\n"), HasSubstr("seeds: holds the same entry twice"));
  EXPECT_THAT(refusal(kHead + "seeds: [-1]\n"), HasSubstr("seeds: must not be negative"));
  EXPECT_THAT(refusal(kHead, {"measure=[val/loss]"}),
              HasSubstr("measure: val/loss: the runs do not validate"));
  EXPECT_THAT(refusal(kHead, {"measure=[eval/hellaswag/accuracy]"}), HasSubstr("evaluate no tasks"));
  const auto of_sources = [&](const std::string& measure) {
    return refusal(kHead, {"measure=[" + measure + "]", "data.validation=[web, code]"});
  };
  EXPECT_THAT(of_sources("val/books/loss"), HasSubstr("val/books/loss: no source of data.validation"));
  EXPECT_THAT(of_sources("val/mixture_loss"), HasSubstr("val/mixture_loss: needs weights in data.train"));
}

TEST_F(StudyDefinition, makes_names_safe_and_keeps_them_apart) {
  const auto runs = expand(load(kHead + "variants: {a b: {}, a/b: {}, ../c: {}}\n"));
  EXPECT_THAT(runs[0].name, MatchesRegex("a_b-[0-9a-f]{8}-seed7"));
  EXPECT_THAT(runs[1].name, MatchesRegex("a_b-[0-9a-f]{8}-seed7"));
  EXPECT_NE(runs[0].name, runs[1].name);
  EXPECT_THAT(runs[2].name, MatchesRegex("_\\._c-[0-9a-f]{8}-seed7"));
  EXPECT_THAT(refusal(kHead + "variants: {a: {}, a-num_experts-4: {}}\ngrid: {model.num_experts: [4]}\n"),
              IsEmpty());
}

TEST_F(StudyDefinition, checksum_sees_what_decides_on_the_result_alone) {
  const auto hash = [&](const std::string& argument) { return expand(load(kHead, {argument}))[0].hash; };
  const std::string same = hash("training.steps=12");
  EXPECT_EQ(hash("training.threads=2"), same);
  EXPECT_EQ(hash("output=there"), same);
  EXPECT_EQ(hash("checkpoint.keep=7"), same);
  EXPECT_NE(hash("training.steps=13"), same);
  EXPECT_NE(hash("seeds=[8]"), same);
  EXPECT_NE(hash("validation.tokens=77"), same);
}

}  // namespace
}  // namespace dtopp::study
