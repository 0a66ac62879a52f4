// The maximum flow, and with it the minimum cut, of a graph whose edges have capacities.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

namespace framejit::autodiff {

inline constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 4;

class Flow {  // Dinic
 public:
  explicit Flow(int n) : first_(n, -1) {}
  void Edge(int from, int to, int64_t capacity) {
    edges_.push_back({to, first_[from], capacity});
    first_[from] = static_cast<int>(edges_.size()) - 1;
    edges_.push_back({from, first_[to], 0});
    first_[to] = static_cast<int>(edges_.size()) - 1;
  }
  void Maximize(int source, int sink) {
    while (Levels(source, sink)) {
      next_ = first_;
      while (Push(source, sink)) {
      }
    }
  }
  // Nodes from which the sink can still be reached.
  std::vector<bool> ReachSink(int sink) const {
    std::vector<bool> seen(first_.size());
    std::deque<int> todo = {sink};
    seen[sink] = true;
    while (!todo.empty()) {
      int v = todo.front();
      todo.pop_front();
      for (int e = first_[v]; e >= 0; e = edges_[e].next) {
        int u = edges_[e].to;  // the twin of e leads from u to v
        if (seen[u] || edges_[e ^ 1].left <= 0) continue;
        seen[u] = true;
        todo.push_back(u);
      }
    }
    return seen;
  }

 private:
  struct E {
    int to, next;
    int64_t left;
  };
  bool Levels(int source, int sink) {
    level_.assign(first_.size(), -1);
    level_[source] = 0;
    std::deque<int> todo = {source};
    while (!todo.empty()) {
      int v = todo.front();
      todo.pop_front();
      for (int e = first_[v]; e >= 0; e = edges_[e].next) {
        if (edges_[e].left <= 0 || level_[edges_[e].to] >= 0) continue;
        level_[edges_[e].to] = level_[v] + 1;
        todo.push_back(edges_[e].to);
      }
    }
    return level_[sink] >= 0;
  }
  // One augmenting path, without recursion: graphs are thousands of values deep.
  bool Push(int source, int sink) {
    std::vector<int> path;
    int v = source;
    while (v != sink) {
      int& e = next_[v];
      while (e >= 0 && (edges_[e].left <= 0 || level_[edges_[e].to] != level_[v] + 1)) e = edges_[e].next;
      if (e >= 0) {
        path.push_back(e);
        v = edges_[e].to;
      } else {
        if (path.empty()) return false;
        level_[v] = -1;
        v = edges_[path.back() ^ 1].to;
        path.pop_back();
      }
    }
    int64_t least = kInfinite;
    for (int e : path) least = std::min(least, edges_[e].left);
    for (int e : path) {
      edges_[e].left -= least;
      edges_[e ^ 1].left += least;
    }
    return true;
  }

  std::vector<int> first_, next_, level_;
  std::vector<E> edges_;
};

}  // namespace framejit::autodiff
