#include "diag/diag.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "diag/cache_folder.h"
#include "diag/progress.h"

namespace framejit::diag {
namespace {

namespace fs = std::filesystem;

struct Scratch {  // a folder for one test
  fs::path path;
  Scratch() {
    std::string name = (fs::temp_directory_path() / "framejit_diag_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Scratch() { fs::remove_all(path); }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return (path / name).string();
  }
};

struct OptionScope {
  std::string field, before;
  OptionScope(std::string f, const std::string& value) : field(std::move(f)), before(GetOption(field)) {
    SetOption(field, value);
  }
  ~OptionScope() { SetOption(field, before); }
};

std::vector<std::string> Lines(const fs::path& p) {
  std::vector<std::string> out;
  std::ifstream in(p);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(Breaks, IdsAreUniqueAndComplete) {
  std::set<std::string> ids;
  for (const BreakInfo& b : AllBreaks()) {
    EXPECT_TRUE(ids.insert(b.id).second) << b.id;
    EXPECT_EQ(std::string(b.id).size(), 6u) << b.id;
    EXPECT_NE(std::string(b.message), "") << b.id;
    EXPECT_NE(std::string(b.explanation), "") << b.id;
  }
  EXPECT_STREQ(Info(BreakId::kTensorBool).id, "FJ0001");
  EXPECT_THROW(Info(static_cast<BreakId>(9999)), InternalError);
}

TEST(Render, CaretsUnderTheRange) {
  Scratch s;
  Break b{BreakId::kTensorBool};
  b.file = s.Write("train.py", "def step(x):\n    h = x + 1\r\n    if h.sum() > 0:\r\n        pass\n");
  b.function = "step", b.line = 3, b.column = 7, b.end_column = 18, b.first_line = 2;
  EXPECT_EQ(Render(b),
            "break[FJ0001]: tensor value used as a Python bool\n"
            "  --> " +
                b.file +
                ":3:8  in step()\n"
                "   |\n"
                " 3 |     if h.sum() > 0:\n"
                "   |        ^^^^^^^^^^^\n"
                "   = note: The branch taken depends on data. The graph ends before it; the truth value is read in "
                "Python; a new "
                "graph starts after.\n"
                "   = effect: line 2 runs as one graph; line 3 runs in Python, then a new graph starts\n"
                "   = help: use torch.where(cond, a, b) / numpy.where, or move the branch out of the function");
}

std::string CaretLine(const std::string& report) {  // from below the source line
  size_t bar = report.find(" |\n");
  size_t source = report.find('\n', bar + 3);
  return report.substr(source + 1, report.find('\n', source + 1) - source - 1);
}

TEST(Render, WideCombiningAndTabs) {
  Scratch s;
  Break b{BreakId::kUnknownCall};
  // "名 = é(f)": 名 is three bytes and two columns; e + combining acute is three bytes and one column.
  b.file = s.Write("a.py", "\t\xE5\x90\x8D = e\xCC\x81(f)\n");
  b.line = 1, b.column = 7, b.end_column = 10;
  EXPECT_EQ(CaretLine(Render(b)), "   |          ^");  // tab 4, wide 2, " = " 3
  b.column = 11, b.end_column = 12;
  EXPECT_EQ(CaretLine(Render(b)), "   |            ^");
}

TEST(Render, RangeThatGoesOnAndLongLines) {
  Scratch s;
  Break b{BreakId::kUnknownCall};
  b.file = s.Write("a.py", "x = f(\n  1)\n" + std::string(300, 'y') + " = target(1)" + std::string(300, 'z') + "\n");
  b.line = 1, b.column = 4, b.end_column = 4;
  EXPECT_EQ(CaretLine(Render(b)), "   |     ^^");
  b.line = 3, b.column = 303, b.end_column = 312;
  std::string report = Render(b);
  EXPECT_NE(report.find("target(1)"), std::string::npos);
  EXPECT_LT(CaretLine(report).size(), 140u);
  size_t at = report.find("target(1)"), start = report.rfind('\n', at) + 1;
  EXPECT_EQ(CaretLine(report).substr(at - start), "^^^^^^^^^");
}

TEST(Render, NotUtf8AndColumnsPastTheEnd) {
  Scratch s;
  Break b{BreakId::kUnknownCall};
  b.file = s.Write("latin.py", "s = '\xE9'; g()\n");
  b.line = 1, b.column = 9, b.end_column = 999;
  EXPECT_NE(Render(b).find("\xEF\xBF\xBD"), std::string::npos);
  b.column = 500, b.end_column = 600;
  EXPECT_NE(Render(b).find("g()"), std::string::npos);
}

TEST(Render, MissingSource) {
  Break b{BreakId::kInstruction};
  b.detail = "FOO", b.file = "<stdin>", b.function = "f", b.line = 12, b.first_line = 20;
  EXPECT_EQ(Render(b),
            "break[FJ0007]: instruction that is not captured: FOO\n"
            "  --> <stdin>:12  in f()\n"
            "   = note: This bytecode instruction is run by CPython.\n"
            "   = effect: the graph that began at line 20 ends here; line 12 runs in Python, then a new graph starts\n"
            "   = help: write it with other statements, or move it out of the function");
  SetSourceReader([](const std::string& file, int line) { return file + std::to_string(line); });
  EXPECT_NE(Render(b).find("12 | <stdin>12"), std::string::npos);
  SetSourceReader({});
  Break bare{BreakId::kInternal};
  EXPECT_EQ(Render(bare).find("-->"), std::string::npos);
}

TEST(Options, ValidationAndSuggestions) {
  const std::string unroll = GetOption("max_unroll");
  for (const OptionInfo& o : Options())
    if (std::string(o.field) == "max_unroll") {
      EXPECT_EQ(unroll, o.default_value);
    }
  EXPECT_THROW(GetOption("nope"), std::out_of_range);
  auto message = [](auto f) -> std::string {
    try {
      f();
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message([] { SetOption("max_unrol", "1"); }).find("did you mean 'max_unroll'?"), std::string::npos);
  EXPECT_NE(message([] { SetOption("zzz", "1"); }).find("valid: log, events"), std::string::npos);
  EXPECT_NE(message([] { SetOption("log", "graph,break"); }).find("did you mean 'breaks'?"), std::string::npos);
  EXPECT_NE(message([] { SetOption("dynamic", "maybe"); }).find("valid: auto, true, false"), std::string::npos);
  EXPECT_NE(message([] { SetOption("max_unroll", "12x"); }).find("not an integer"), std::string::npos);
  EXPECT_EQ(GetOption("max_unroll"), unroll);  // a rejected value changes nothing
  uint64_t generation = OptionsGeneration();
  OptionScope verify("verify", "True");
  EXPECT_GT(OptionsGeneration(), generation);
  EXPECT_TRUE(OptionOn("verify"));
  EXPECT_EQ(GetOption("verify"), "1");
}

TEST(Options, ChannelListMatchesTheChannels) {
  std::string names;
#define X(n) names += std::string(names.empty() ? "" : ",") + #n;
  FRAMEJIT_CHANNELS(X)
#undef X
  for (const OptionInfo& o : Options())
    if (std::string(o.field) == "log") {
      EXPECT_EQ(o.choices, names);
    }
}

TEST(Options, Environment) {  // read once a process, so in a child
  auto run = [](const char* name, const char* value) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
      dup2(fds[1], 1);
      setenv(name, value, 1);
      execl("/proc/self/exe", "diag_test", "--print-environment", nullptr);
      _exit(127);
    }
    close(fds[1]);
    std::string out;
    char buffer[512];
    for (ssize_t n; (n = read(fds[0], buffer, sizeof buffer)) > 0;) out.append(buffer, n);
    close(fds[0]);
    waitpid(pid, nullptr, 0);
    return out;
  };
  EXPECT_EQ(run("FRAMEJIT_LOG", "graph, breaks"), "|graph,breaks");
  EXPECT_EQ(run("FRAMEJIT_LOG", "grpah"),
            "FRAMEJIT_LOG: unknown name 'grpah': did you mean 'graph'? (valid: breaks, recompiles, guards, graph, "
            "fusion, loop, "
            "llvm, asm, ptx, perf)|");
  EXPECT_EQ(run("FRAMEJIT_FUZZ_SECONDS", "9"), "|");  // of the tests, and like no option but for the prefix
  EXPECT_EQ(run("FRAMEJIT_LOGS", "graph"), "unknown environment variable FRAMEJIT_LOGS: did you mean FRAMEJIT_LOG?|");
  EXPECT_EQ(run("FRAMEJIT_SOMETHING_ELSE", "1"), "|");
}

TEST(Log, GoesToStderrWhenTheChannelIsOn) {
  testing::internal::CaptureStderr();
  Log(Channel::graph_, "hidden");
  {
    OptionScope log("log", "graph");
    EXPECT_TRUE(Enabled(Channel::graph_));
    EXPECT_FALSE(Enabled(Channel::breaks_));
    Log(Channel::graph_, "shown {} %s");  // not a format string
    Log(Channel::breaks_, "hidden");
  }
  EXPECT_FALSE(Enabled(Channel::graph_));
  Warn("always");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "framejit graph: shown {} %s\nframejit: always\n");
}

TEST(Trace, OneLineAnEventFromThreadsAndForks) {
  Scratch s;
  OptionScope events("events", (s.path / "deep" / "dir").string());
  Event("capture", {{"name", Quote("a\"b\nc")}, {"n", Json(3)}, {"seconds", Json(0.5)}, {"raw", "{\n}"}, {"none", ""}});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) Event("call", {{"text", Quote(std::string(3000, 'x'))}});
    });
  for (std::thread& t : threads) t.join();
  pid_t pid = fork();
  if (pid == 0) {
    Event("child", {});
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  fs::path dir = s.path / "deep" / "dir";
  std::vector<std::string> mine = Lines(dir / ("framejit-" + std::to_string(getpid()) + ".jsonl"));
  ASSERT_EQ(mine.size(), 802u);
  EXPECT_TRUE(mine[0].starts_with("{\"kind\":\"process\",\"t\":"));
  EXPECT_NE(mine[1].find("\"name\":\"a\\\"b\\nc\",\"n\":3,\"seconds\":0.5,\"raw\":{ },\"none\":null}"),
            std::string::npos)
      << mine[1];
  for (const std::string& line : mine) EXPECT_TRUE(line.front() == '{' && line.back() == '}');
  std::vector<std::string> child = Lines(dir / ("framejit-" + std::to_string(pid) + ".jsonl"));
  ASSERT_EQ(child.size(), 2u);
  EXPECT_TRUE(child[1].starts_with("{\"kind\":\"child\""));
}

TEST(Trace, TheFirstEventsAndTheLastOnesAreKept) {
  Scratch s;
  OptionScope events("events", s.path.string()), limit("events_limit", "1");
  constexpr int kEvents = 400;  // of 10 kB: a dozen parts
  for (int i = 0; i < kEvents; ++i) Event("call", {{"i", Json(i)}, {"text", Quote(std::string(10000, 'x'))}});
  std::map<int, std::vector<std::string>> parts;
  uintmax_t bytes = 0;
  for (const auto& file : fs::directory_iterator(s.path)) {
    int part = 0;
    std::sscanf(file.path().filename().c_str(), "framejit-%*d.%d.jsonl", &part);
    parts[part] = Lines(file.path());
    bytes += file.file_size();
  }
  ASSERT_EQ(parts.size(), 3u);
  const int last = parts.rbegin()->first;
  EXPECT_GT(last, 8);
  EXPECT_TRUE(parts.contains(0) && parts.contains(last - 1));
  EXPECT_LT(bytes, (1u << 20) + 3 * 11000u);
  EXPECT_NE(parts[0][1].find("\"i\":0,"), std::string::npos);
  EXPECT_NE(parts[last].back().find("\"i\":" + std::to_string(kEvents - 1) + ","), std::string::npos);
  for (const auto& [part, lines] : parts)
    EXPECT_NE(lines[0].find("\"part\":" + std::to_string(part) + ","), std::string::npos);
}

TEST(Trace, TextOfChannels) {
  Scratch s;
  OptionScope events("events", s.path.string()), log("log", "breaks"), texts("events_log", "graph,loop");
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Enabled(Channel::graph_));
  EXPECT_FALSE(Enabled(Channel::llvm_));
  Log(Channel::graph_, "a graph\n");
  Log(Channel::breaks_, "a break");
  Log(Channel::llvm_, "nothing");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "framejit breaks: a break\n");
  std::vector<std::string> lines = Lines(s.path / ("framejit-" + std::to_string(getpid()) + ".jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[1].find("\"channel\":\"graph\",\"text\":\"a graph\\n\"}"), std::string::npos) << lines[1];
}

TEST(Trace, UnwritableDirectoryWarnsOnce) {
  Scratch s;
  std::string file = s.Write("plain", "");
  OptionScope events("events", file + "/sub");
  testing::internal::CaptureStderr();
  Event("a", {});
  Event("b", {});
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("cannot write"), std::string::npos);
  EXPECT_EQ(text.find("cannot write"), text.rfind("cannot write"));
}

TEST(Json, QuoteAndNumbers) {
  EXPECT_EQ(Quote("a\x01\xE5\x90\x8D\xFF\\"), "\"a\\u0001\xE5\x90\x8D\xEF\xBF\xBD\\\\\"");
  EXPECT_EQ(Quote("\xED\xA0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");  // a lone surrogate is not UTF-8
  EXPECT_EQ(Json(0.1), "0.1");
  EXPECT_EQ(std::strtod(Json(1.0 / 3).c_str(), nullptr), 1.0 / 3);
  EXPECT_EQ(Json(std::strtod("nan", nullptr)), "null");
  EXPECT_EQ(Json(true), "true");
  EXPECT_EQ(JsonStrings({"a", "b"}), "[\"a\",\"b\"]");
}

TEST(CacheFolder, WhatWasNotUsedForLongestGoes) {
  Scratch folder;
  const std::string text(400000, 'x');
  for (int i = 0; i < 4; ++i) {
    const std::string file = folder.Write("gpu-" + std::to_string(i), text);
    fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(10 - i));
  }
  folder.Write("other", text);
  NoteUse((folder.path / "gpu-0").string());
  auto left = [&] {
    std::string names;
    for (int i = 0; i < 4; ++i)
      if (fs::exists(folder.path / ("gpu-" + std::to_string(i)))) names += std::to_string(i);
    return names;
  };
  SetOption("cache_limit", "0");
  MakeRoom(folder.path.string(), 1);
  EXPECT_EQ(left(), "0123");
  SetOption("cache_limit", "2");
  MakeRoom(folder.path.string(), 1);
  EXPECT_EQ(left(), "0123");
  MakeRoom(folder.path.string(), 100000);  // too little to look again
  MakeRoom(folder.path.string(), 600000);
  EXPECT_EQ(left(), "023");
  EXPECT_TRUE(fs::exists(folder.path / "other"));
  std::vector<std::thread> several;
  SetOption("cache_limit", "1");
  for (int i = 0; i < 4; ++i) several.emplace_back([&] { MakeRoom(folder.path.string(), 500000); });
  for (std::thread& t : several) t.join();
  SetOption("cache_limit", "1024");
  EXPECT_LE(left().size(), 1u);
}

TEST(Progress, ALineOnATerminalThatGoesAgain) {
  int terminal, side;
  ASSERT_EQ(openpty(&terminal, &side, nullptr, nullptr, nullptr), 0);
  fcntl(terminal, F_SETFL, O_NONBLOCK);
  const auto shown = [&] {
    char text[1024];
    const ssize_t n = read(terminal, text, sizeof text);
    return std::string(text, std::max<ssize_t>(n, 0));
  };
  {
    const Progress progress("compiling f", side, std::chrono::seconds(60));
  }
  EXPECT_EQ(shown(), "");
  {
    const Progress progress("compiling f", side, std::chrono::milliseconds(1));
    const Progress inner("compiling g", side, std::chrono::milliseconds(1));
    std::string first;
    while (first.empty()) first = shown();
    EXPECT_EQ(first, "\r\033[Kframejit: compiling f 0 s");
  }
  EXPECT_EQ(shown(), "\r\033[K");
  close(terminal);
  close(side);
}

TEST(Check, ThrowsWithARelativePath) {
  try {
    FRAMEJIT_CHECK(1 + 1 == 3);
    FAIL();
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("1 + 1 == 3"), std::string::npos);
  }
  try {
    CheckFailed("/somewhere/src/guard/check.cc", 7, "x");
  } catch (const InternalError& e) {
    EXPECT_STREQ(e.what(), "src/guard/check.cc:7: x");
  }
}

}  // namespace
}  // namespace framejit::diag

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--print-environment") {
    std::string text = framejit::diag::CheckEnvironment() + "|" + framejit::diag::GetOption("log");
    return fputs(text.c_str(), stdout) < 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
