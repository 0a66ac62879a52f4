// The report of a break, laid out like a compiler's. Columns come from CPython as UTF-8 byte offsets; carets go by
// terminal columns, so that they stand under wide and combining characters too. Long lines show a window around the
// range.
#include <algorithm>
#include <fstream>
#include <mutex>
#include <utility>

#include "diag/diag.h"
#include "diag/utf8.h"

namespace framejit::diag {
namespace {

constexpr int kWindow = 120;  // terminal columns of source shown
constexpr int kTab = 4;

struct Reader {
  std::mutex mutex;
  std::function<std::string(const std::string&, int)> function;
};
Reader& GetReader() {
  static Reader* r = new Reader;
  return *r;
}

bool ReadLine(const std::string& file, int line, std::string* out) {
  if (line <= 0) return false;
  std::ifstream in(file, std::ios::binary);
  bool opened = in.is_open();
  int at = 0;
  while (opened && at < line && std::getline(in, *out)) ++at;
  if (at < line) {
    std::function<std::string(const std::string&, int)> reader;
    {
      std::lock_guard lock(GetReader().mutex);
      reader = GetReader().function;
    }
    *out = reader ? reader(file, line) : "";
    if (out->empty()) return false;
  }
  while (!out->empty() && (out->back() == '\n' || out->back() == '\r')) out->pop_back();
  if (line == 1 && out->starts_with("\xEF\xBB\xBF")) out->erase(0, 3);  // CPython's columns do not count it
  return true;
}

struct Cell {  // one character as shown
  std::string text;
  int width;
  bool marked;
};

// The line as cells: tabs expanded, control characters blanked, the byte range [column, end) marked.
std::vector<Cell> Layout(const std::string& line, int column, int end) {
  std::vector<Cell> cells;
  int at_column = 0;
  for (size_t i = 0; i < line.size();) {
    auto [c, length] = DecodeAt(line, i);
    bool marked = static_cast<int>(i) >= column && static_cast<int>(i) < end;
    Cell cell{"", DisplayWidth(c), marked};
    if (c == '\t') {
      cell.width = kTab - at_column % kTab;
      cell.text.assign(cell.width, ' ');
    } else if (c < 0x20 || c == 0x7F) {
      cell.text = " ";
    } else {
      AppendUtf8(cell.text, c);
    }
    at_column += cell.width;
    cells.push_back(std::move(cell));
    i += length;
  }
  return cells;
}

// Cuts a long line to a window that shows the start of the range.
void Crop(std::vector<Cell>& cells) {
  int total = 0, start = 0;
  for (const Cell& c : cells) total += c.width;
  if (total <= kWindow) return;
  auto first = std::find_if(cells.begin(), cells.end(), [](const Cell& c) { return c.marked; });
  for (auto it = cells.begin(); first != cells.end() && it != first; ++it) start += it->width;
  int from = std::max(0, std::min(start - kWindow / 4, total - kWindow)), to = from + kWindow;
  if (from < 4) to -= from, from = 0;
  std::vector<Cell> out;
  if (from > 0) out.push_back({"...", 3, false});
  int at = 0;
  for (Cell& c : cells) {
    const int begin = std::exchange(at, at + c.width);
    if (begin >= from && at <= to) out.push_back(std::move(c));
  }
  if (to < total) out.push_back({"...", 3, false});
  cells = std::move(out);
}

std::string Effect(const Break& b) {
  if (b.first_line <= 0 || b.line <= 0) return "";
  std::string here = "line " + std::to_string(b.line) + " runs in Python, then a new graph starts";
  if (b.first_line == b.line) return here;
  if (b.first_line > b.line)  // a loop came back to an earlier line
    return "the graph that began at line " + std::to_string(b.first_line) + " ends here; " + here;
  int last = b.line - 1;
  if (b.first_line == last) return "line " + std::to_string(last) + " runs as one graph; " + here;
  return "lines " + std::to_string(b.first_line) + "-" + std::to_string(last) + " run as one graph; " + here;
}

}  // namespace

void SetSourceReader(std::function<std::string(const std::string&, int)> reader) {
  std::lock_guard lock(GetReader().mutex);
  GetReader().function = std::move(reader);
}

std::string Render(const Break& b) {
  const BreakInfo& info = Info(b.id);
  std::string out = std::string("break[") + info.id + "]: " + info.message;
  if (!b.detail.empty()) out += ": " + b.detail;
  out += "\n";
  std::string number = b.line > 0 ? std::to_string(b.line) : "";
  std::string margin(std::max<size_t>(number.size(), 2), ' ');
  if (!b.file.empty()) {
    bool has_column = b.line > 0 && (b.column > 0 || b.end_column > 0);
    out += margin + "--> " + b.file;
    if (b.line > 0) out += ":" + number;
    if (has_column) out += ":" + std::to_string(b.column + 1);
    if (!b.function.empty()) out += "  in " + b.function + "()";
    out += "\n";
    if (std::string line; ReadLine(b.file, b.line, &line)) {
      int size = static_cast<int>(line.size());
      int column = has_column ? std::clamp(b.column, 0, size) : 0;
      int end = has_column ? (b.end_column > b.column ? std::min(b.end_column, size) : size) : 0;
      std::vector<Cell> cells = Layout(line, column, end);
      Crop(cells);
      std::string source, carets;
      for (const Cell& c : cells) {
        source += c.text;
        carets.append(c.width, c.marked ? '^' : ' ');
      }
      source.erase(source.find_last_not_of(' ') + 1);
      carets.erase(carets.find_last_not_of(' ') + 1);
      out += margin + " |\n" + std::string(margin.size() - number.size(), ' ') + number + " | " + source + "\n";
      if (!carets.empty()) out += margin + " | " + carets + "\n";
    }
  }
  auto note = [&](const char* what, const std::string& text) {
    if (!text.empty()) out += margin + " = " + what + ": " + text + "\n";
  };
  note("note", info.explanation);
  note("effect", Effect(b));
  note("help", info.hint);
  out.pop_back();
  return out;
}

}  // namespace framejit::diag
