// Metal's SIMD-group and quad-group functions (Metal Shading Language Specification 6.10) and barriers.
//
// A SIMD-group is a warp. As in Metal, the functions take in the threads that are active at the call: lanes outside
// the grid and lanes in another branch do not count.
#pragma once

#include <kd_metal_math.h>

namespace metal {

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
constexpr mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }

enum memory_order : int {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst,
};
enum thread_scope : int { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };

// A barrier of CUDA orders SMEM and GMEM within the block, whichever flags are given.
inline void threadgroup_barrier(mem_flags) { ::__syncthreads(); }
inline void simdgroup_barrier(mem_flags) { ::__syncwarp(); }
inline void atomic_thread_fence(
    mem_flags, memory_order = memory_order_seq_cst, thread_scope scope = thread_scope_device) {
  if (scope == thread_scope_device) ::__threadfence();
  else ::__threadfence_block();
}

namespace detail {

inline uint lane() {
  uint id;
  asm("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
}

// A value of any type, moved lane to lane 32 bits at a time.
template <typename T, typename Move>
inline T move(const T& value, Move exchange) {
  constexpr int words = (sizeof(T) + 3) / 4;
  uint bits[words] = {};
  memcpy(bits, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < words; ++i) bits[i] = exchange(bits[i]);
  T out;
  memcpy(&out, bits, sizeof(T));
  return out;
}

// A swizzle or packed vector becomes the vector it stands for; anything else is itself.
template <typename A>
using Value = typename choose<is_vector<A>, vector_of<A>, A>::type;

template <typename T>
inline T from_lane(const T& value, uint source, uint active) {
  return move(value, [=](uint w) { return ::__shfl_sync(active, w, int(source)); });
}

// The active lanes of this lane's group of `Width`, as bits of the warp.
template <int Width>
inline uint group_of(uint active) {
  uint first = lane() & ~uint(Width - 1);
  return Width == 32 ? active : active & (((1u << (Width & 31)) - 1) << first);
}

// op over the active lanes of each group of `Width`; every lane gets the result.
template <int Width, typename T, typename Op>
inline T reduce(T value, Op op) {
  uint active = ::__activemask();
  if (active == 0xffffffffu) {
#pragma unroll
    for (int distance = Width / 2; distance > 0; distance /= 2) {
      value = op(value, move(value, [=](uint w) { return ::__shfl_xor_sync(0xffffffffu, w, distance); }));
    }
    return value;
  }
  uint mine = group_of<Width>(active);
  T result = value;
  bool first = true;
  for (uint rest = active; rest != 0; rest &= rest - 1) {
    uint source = uint(::__ffs(int(rest))) - 1;
    T other = from_lane(value, source, active);
    if (mine >> source & 1) {
      result = first ? other : op(result, other);
      first = false;
    }
  }
  return result;
}

// op over the active lanes before this one (and this one itself); `neutral` where there is none.
template <int Width, bool Inclusive, typename T, typename Op>
inline T prefix(const T& value, T neutral, Op op) {
  uint active = ::__activemask(), id = lane();
  if (active == 0xffffffffu) {
    uint in = id & (Width - 1);
    T sum = value;
#pragma unroll
    for (uint distance = 1; distance < Width; distance *= 2) {
      T before = move(sum, [=](uint w) { return ::__shfl_up_sync(0xffffffffu, w, distance, Width); });
      if (in >= distance) sum = op(before, sum);
    }
    if (Inclusive) return sum;
    T shifted = move(sum, [=](uint w) { return ::__shfl_up_sync(0xffffffffu, w, 1, Width); });
    return in == 0 ? neutral : shifted;
  }
  uint mine = group_of<Width>(active);
  T result = neutral;
  bool first = true;
  for (uint rest = active; rest != 0; rest &= rest - 1) {
    uint source = uint(::__ffs(int(rest))) - 1;
    T other = from_lane(value, source, active);
    if ((mine >> source & 1) && (Inclusive ? source <= id : source < id)) {
      result = first ? other : op(result, other);
      first = false;
    }
  }
  return result;
}

}  // namespace detail

// What simd_ballot gives: one bit a lane.
class simd_vote {
 public:
  using vote_t = ulong;
  constexpr explicit simd_vote(vote_t bits = 0) : bits_(bits) {}
  constexpr explicit operator vote_t() const { return bits_; }
  constexpr bool all() const { return bits_ == 0xffffffffu; }
  constexpr bool any() const { return bits_ != 0; }

 private:
  vote_t bits_;
};
class quad_vote {
 public:
  using vote_t = uint;
  constexpr explicit quad_vote(vote_t bits = 0) : bits_(bits) {}
  constexpr explicit operator vote_t() const { return bits_; }
  constexpr bool all() const { return bits_ == 0xfu; }
  constexpr bool any() const { return bits_ != 0; }

 private:
  vote_t bits_;
};

inline simd_vote simd_active_threads_mask() { return simd_vote(::__activemask()); }
inline simd_vote simd_ballot(bool e) { return simd_vote(::__ballot_sync(::__activemask(), e)); }
inline bool simd_all(bool e) { return ::__all_sync(::__activemask(), e); }
inline bool simd_any(bool e) { return ::__any_sync(::__activemask(), e); }
inline bool simd_is_first() { return detail::lane() + 1 == uint(::__ffs(int(::__activemask()))); }
inline bool simd_is_helper_thread() { return false; }

inline quad_vote quad_active_threads_mask() {
  return quad_vote(detail::group_of<4>(::__activemask()) >> (detail::lane() & ~3u));
}
inline quad_vote quad_ballot(bool e) {
  return quad_vote(detail::group_of<4>(::__ballot_sync(::__activemask(), e)) >> (detail::lane() & ~3u));
}
inline bool quad_all(bool e) {
  uint active = ::__activemask();
  return detail::group_of<4>(::__ballot_sync(active, e)) == detail::group_of<4>(active);
}
inline bool quad_any(bool e) { return detail::group_of<4>(::__ballot_sync(::__activemask(), e)) != 0; }
inline bool quad_is_first() {
  return detail::lane() + 1 == uint(::__ffs(int(detail::group_of<4>(::__activemask()))));
}
inline bool quad_is_helper_thread() { return false; }

#define KD_REDUCE(name, call)                                     \
  template <typename A>                                           \
  inline auto simd_##name(const A& a) {                           \
    using T = detail::Value<A>;                                   \
    return detail::reduce<32>(T(a), [](T x, T y) { return T(call); }); \
  }                                                               \
  template <typename A>                                           \
  inline auto quad_##name(const A& a) {                           \
    using T = detail::Value<A>;                                   \
    return detail::reduce<4>(T(a), [](T x, T y) { return T(call); }); \
  }
KD_REDUCE(sum, x + y)
KD_REDUCE(product, x* y)
KD_REDUCE(prod, x* y)
KD_REDUCE(max, metal::max(x, y))
KD_REDUCE(min, metal::min(x, y))
KD_REDUCE(and, x& y)
KD_REDUCE(or, x | y)
KD_REDUCE(xor, x ^ y)
#undef KD_REDUCE

#define KD_PREFIX(name, neutral, call)                                                      \
  template <typename A>                                                                     \
  inline auto simd_prefix_inclusive_##name(const A& a) {                                    \
    using T = detail::Value<A>;                                                             \
    return detail::prefix<32, true>(T(a), T(neutral), [](T x, T y) { return T(call); });    \
  }                                                                                         \
  template <typename A>                                                                     \
  inline auto simd_prefix_exclusive_##name(const A& a) {                                    \
    using T = detail::Value<A>;                                                             \
    return detail::prefix<32, false>(T(a), T(neutral), [](T x, T y) { return T(call); });   \
  }                                                                                         \
  template <typename A>                                                                     \
  inline auto quad_prefix_inclusive_##name(const A& a) {                                    \
    using T = detail::Value<A>;                                                             \
    return detail::prefix<4, true>(T(a), T(neutral), [](T x, T y) { return T(call); });     \
  }                                                                                         \
  template <typename A>                                                                     \
  inline auto quad_prefix_exclusive_##name(const A& a) {                                    \
    using T = detail::Value<A>;                                                             \
    return detail::prefix<4, false>(T(a), T(neutral), [](T x, T y) { return T(call); });    \
  }
KD_PREFIX(sum, 0, x + y)
KD_PREFIX(product, 1, x* y)
#undef KD_PREFIX

// --- moving values between lanes ----------------------------------------------------------------------

// The value of lane `source`, counted within the group.
#define KD_MOVES(group, width)                                                                     \
  template <typename A>                                                                            \
  inline auto group##_shuffle(const A& a, ushort source) {                                         \
    using T = detail::Value<A>;                                                                    \
    uint at = (detail::lane() & ~uint(width - 1)) | (source & (width - 1));                        \
    return detail::from_lane(T(a), at, ::__activemask());                                          \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_broadcast(const A& a, ushort source) {                                       \
    return group##_shuffle(a, source);                                                             \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_broadcast_first(const A& a) {                                                \
    using T = detail::Value<A>;                                                                    \
    uint active = ::__activemask();                                                                \
    uint first = uint(::__ffs(int(detail::group_of<width>(active)))) - 1;                          \
    return detail::from_lane(T(a), first, active);                                                 \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_shuffle_xor(const A& a, ushort mask) {                                       \
    using T = detail::Value<A>;                                                                    \
    return detail::from_lane(T(a), detail::lane() ^ (mask & (width - 1)), ::__activemask());       \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_shuffle_up(const A& a, ushort delta) {                                       \
    using T = detail::Value<A>;                                                                    \
    uint in = detail::lane() & (width - 1);                                                        \
    return detail::from_lane(                                                                      \
        T(a), in >= delta ? detail::lane() - delta : detail::lane(), ::__activemask());            \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_shuffle_down(const A& a, ushort delta) {                                     \
    using T = detail::Value<A>;                                                                    \
    uint in = detail::lane() & (width - 1);                                                        \
    return detail::from_lane(                                                                      \
        T(a), in + delta < width ? detail::lane() + delta : detail::lane(), ::__activemask());     \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_shuffle_rotate_up(const A& a, ushort delta) {                                \
    return group##_shuffle(a, ushort(detail::lane() + width - delta % width));                     \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_shuffle_rotate_down(const A& a, ushort delta) {                              \
    return group##_shuffle(a, ushort(detail::lane() + delta));                                     \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_shuffle_and_fill_up(                                                         \
      const A& a, const A& fill, ushort delta, ushort modulo = width) {                            \
    uint in = detail::lane() % modulo;                                                             \
    auto shifted = group##_shuffle(a, ushort(detail::lane() - delta));                             \
    auto filled = group##_shuffle(fill, ushort(detail::lane() + modulo - delta));                  \
    return in < delta ? filled : shifted;                                                          \
  }                                                                                                \
  template <typename A>                                                                            \
  inline auto group##_shuffle_and_fill_down(                                                       \
      const A& a, const A& fill, ushort delta, ushort modulo = width) {                            \
    uint in = detail::lane() % modulo;                                                             \
    auto shifted = group##_shuffle(a, ushort(detail::lane() + delta));                             \
    auto filled = group##_shuffle(fill, ushort(detail::lane() + delta - modulo));                  \
    return in + delta >= modulo ? filled : shifted;                                                \
  }
KD_MOVES(simd, 32)
KD_MOVES(quad, 4)
#undef KD_MOVES

}  // namespace metal
