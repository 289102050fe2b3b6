// Metal's vector types: vec<T, N> with its constructors, elementwise operators and swizzles (xyzw and rgba, to read and
// to assign).
#pragma once

#include <kd_metal_half.h>

namespace metal {

template <typename T, int N>
struct vec;

namespace detail {

// A swizzle such as `v.zx`: some elements of a vector of N, in some order. Lies over the vector's own memory.
template <typename T, int N, int... I>
struct Swizzle {
  T data[N];

  static constexpr int order(int i) {
    constexpr int table[] = {I...};
    return table[i];
  }
  Swizzle() = default;
  constexpr Swizzle(const Swizzle&) = default;
  constexpr operator vec<T, sizeof...(I)>() const { return vec<T, sizeof...(I)>(data[I]...); }
  constexpr T operator[](int i) const { return data[order(i)]; }
  // By value: in `v.yx = v` both are the same memory.
  constexpr Swizzle& operator=(vec<T, sizeof...(I)> v) {
    for (int i = 0; i < int(sizeof...(I)); ++i) data[order(i)] = v[i];
    return *this;
  }
  constexpr Swizzle& operator=(const Swizzle& v) { return *this = vec<T, sizeof...(I)>(v); }
};

// The vector that a type is or stands for: vec itself, or what a swizzle reads as; void for anything else.
template <typename A>
struct VectorOf {
  using type = void;
  using element = A;
  static constexpr int size = 1;
};
template <typename T, int N>
struct VectorOf<vec<T, N>> {
  using type = vec<T, N>;
  using element = T;
  static constexpr int size = N;
};
template <typename T, int N, int... I>
struct VectorOf<Swizzle<T, N, I...>> {
  using type = vec<T, sizeof...(I)>;
  using element = T;
  static constexpr int size = sizeof...(I);
};
template <typename A>
using vector_of = typename VectorOf<A>::type;
template <typename A>
using element_of = typename VectorOf<A>::element;
template <typename A>
constexpr int size_of = VectorOf<A>::size;
template <typename A>
constexpr bool is_vector = !same<vector_of<A>, void>;

// Element i of a vector; a scalar is all of its elements.
template <typename A>
constexpr auto element(const A& a, int i) {
  if constexpr (is_vector<A>) return a[i];
  else return a;
}

// Of operands of which at least one is a vector: how many elements, and of which type (the first vector's).
template <typename A, typename B>
constexpr int joint_size = is_vector<A> ? size_of<A> : size_of<B>;
template <typename A, typename B>
using joint_element = element_of<typename choose<is_vector<A>, A, B>::type>;
template <typename A, typename B>
constexpr bool joint = (is_vector<A> || is_vector<B>) &&
                       (is_vector<A> || is_scalar<A>) && (is_vector<B> || is_scalar<B>) &&
                       (!is_vector<A> || !is_vector<B> || size_of<A> == size_of<B>);

}  // namespace detail

// Swizzles by macros: KD_SWIZZLES<n>(letters) declares every combination of two, three and four of n letters.
#define KD_S2(N, a, i, b, j) detail::Swizzle<T, N, i, j> a##b;
#define KD_S3(N, a, i, b, j, c, k) detail::Swizzle<T, N, i, j, k> a##b##c;
#define KD_S4(N, a, i, b, j, c, k, d, l) detail::Swizzle<T, N, i, j, k, l> a##b##c##d;
#define KD_FOUR2(a, i, b, j, c, k, p, q) KD_S4(2, a, i, b, j, c, k, p, 0) KD_S4(2, a, i, b, j, c, k, q, 1)
#define KD_THREE2(a, i, b, j, p, q) KD_S3(2, a, i, b, j, p, 0) KD_FOUR2(a, i, b, j, p, 0, p, q) KD_S3(2, a, i, \
  b, j, q, 1) KD_FOUR2(a, i, b, j, q, 1, p, q)
#define KD_TWO2(a, i, p, q) KD_S2(2, a, i, p, 0) KD_THREE2(a, i, p, 0, p, q) KD_S2(2, a, i, q, 1) KD_THREE2(a, \
  i, q, 1, p, q)
#define KD_SWIZZLES2(p, q) KD_TWO2(p, 0, p, q) KD_TWO2(q, 1, p, q)
#define KD_FOUR3(a, i, b, j, c, k, p, q, r) KD_S4(3, a, i, b, j, c, k, p, 0) KD_S4(3, a, i, b, j, c, k, q, 1) \
  KD_S4(3, a, i, b, j, c, k, r, 2)
#define KD_THREE3(a, i, b, j, p, q, r) KD_S3(3, a, i, b, j, p, 0) KD_FOUR3(a, i, b, j, p, 0, p, q, r) KD_S3(3, \
  a, i, b, j, q, 1) KD_FOUR3(a, i, b, j, q, 1, p, q, r) KD_S3(3, a, i, b, j, r, 2) KD_FOUR3(a, i, b, j, r, 2, \
  p, q, r)
#define KD_TWO3(a, i, p, q, r) KD_S2(3, a, i, p, 0) KD_THREE3(a, i, p, 0, p, q, r) KD_S2(3, a, i, q, 1) \
  KD_THREE3(a, i, q, 1, p, q, r) KD_S2(3, a, i, r, 2) KD_THREE3(a, i, r, 2, p, q, r)
#define KD_SWIZZLES3(p, q, r) KD_TWO3(p, 0, p, q, r) KD_TWO3(q, 1, p, q, r) KD_TWO3(r, 2, p, q, r)
#define KD_FOUR4(a, i, b, j, c, k, p, q, r, s) KD_S4(4, a, i, b, j, c, k, p, 0) KD_S4(4, a, i, b, j, c, k, q, \
  1) KD_S4(4, a, i, b, j, c, k, r, 2) KD_S4(4, a, i, b, j, c, k, s, 3)
#define KD_THREE4(a, i, b, j, p, q, r, s) KD_S3(4, a, i, b, j, p, 0) KD_FOUR4(a, i, b, j, p, 0, p, q, r, s) \
  KD_S3(4, a, i, b, j, q, 1) KD_FOUR4(a, i, b, j, q, 1, p, q, r, s) KD_S3(4, a, i, b, j, r, 2) KD_FOUR4(a, i, \
  b, j, r, 2, p, q, r, s) KD_S3(4, a, i, b, j, s, 3) KD_FOUR4(a, i, b, j, s, 3, p, q, r, s)
#define KD_TWO4(a, i, p, q, r, s) KD_S2(4, a, i, p, 0) KD_THREE4(a, i, p, 0, p, q, r, s) KD_S2(4, a, i, q, 1) \
  KD_THREE4(a, i, q, 1, p, q, r, s) KD_S2(4, a, i, r, 2) KD_THREE4(a, i, r, 2, p, q, r, s) KD_S2(4, a, i, s, \
  3) KD_THREE4(a, i, s, 3, p, q, r, s)
#define KD_SWIZZLES4(p, q, r, s) KD_TWO4(p, 0, p, q, r, s) KD_TWO4(q, 1, p, q, r, s) KD_TWO4(r, 2, p, q, r, s) \
  KD_TWO4(s, 3, p, q, r, s)


namespace detail {

// The memory of a vector under all of its names.
template <typename T, int N>
struct Components;
#define KD_COMPONENTS(N, SWIZZLES, XYZW, RGBA, X, R) \
  template <typename T>                              \
  struct Components<T, N> {                          \
    union {                                          \
      T data[N];                                     \
      struct {                                       \
        T XYZW;                                      \
      };                                             \
      struct {                                       \
        T RGBA;                                      \
      };                                             \
      SWIZZLES X SWIZZLES R                          \
    };                                               \
    Components() = default;                          \
    constexpr explicit Components(int) : data{} {}   \
  };
#define KD_LIST(...) __VA_ARGS__
KD_COMPONENTS(2, KD_SWIZZLES2, KD_LIST(x, y), KD_LIST(r, g), (x, y), (r, g))
KD_COMPONENTS(3, KD_SWIZZLES3, KD_LIST(x, y, z), KD_LIST(r, g, b), (x, y, z), (r, g, b))
KD_COMPONENTS(4, KD_SWIZZLES4, KD_LIST(x, y, z, w), KD_LIST(r, g, b, a), (x, y, z, w), (r, g, b, a))
#undef KD_COMPONENTS

}  // namespace detail

// N elements of T, aligned as Metal does: vectors of three take the room of four.
template <typename T, int N>
struct alignas(sizeof(T) * (N == 3 ? 4 : N)) vec : detail::Components<T, N> {
  using Base = detail::Components<T, N>;
  using Base::data;

  vec() = default;
  constexpr vec(const vec& v) : Base(0) {
    for (int i = 0; i < N; ++i) data[i] = v.data[i];
  }
  template <typename S, typename = detail::enable_if_t<detail::is_scalar<S>>>
  constexpr vec(S value) : Base(0) {
    for (int i = 0; i < N; ++i) data[i] = T(value);
  }
  template <typename U, typename = detail::enable_if_t<!detail::same<T, U>>>
  constexpr explicit vec(const vec<U, N>& v) : Base(0) {
    for (int i = 0; i < N; ++i) data[i] = T(v[i]);
  }
  template <
      typename U, int M, int... I,
      typename = detail::enable_if_t<sizeof...(I) == N && !detail::same<T, U>>>
  constexpr explicit vec(const detail::Swizzle<U, M, I...>& v) : vec(vec<U, N>(v)) {}
  // From parts that have N elements together: float4(position.xyz, 1).
  template <
      typename A, typename B, typename... C,
      typename = detail::enable_if_t<
          (detail::size_of<A> + detail::size_of<B> + ... + detail::size_of<C>) == N>>
  constexpr vec(const A& a, const B& b, const C&... c) : Base(0) {
    int at = 0;
    place(at, a);
    place(at, b);
    (place(at, c), ...);
  }

  constexpr vec& operator=(const vec& v) {
    for (int i = 0; i < N; ++i) data[i] = v.data[i];
    return *this;
  }
  constexpr T& operator[](int i) { return data[i]; }
  constexpr const T& operator[](int i) const { return data[i]; }

 private:
  template <typename A>
  constexpr void place(int& at, const A& a) {
    for (int i = 0; i < detail::size_of<A>; ++i) data[at++] = T(detail::element(a, i));
  }
};

// Without padding: three floats take 12 bytes. Reads as and is assigned from vec<T, N>.
template <typename T, int N>
struct packed_vec : detail::Components<T, N> {
  using Base = detail::Components<T, N>;
  using Base::data;

  packed_vec() = default;
  constexpr packed_vec(const packed_vec& v) : Base(0) {
    for (int i = 0; i < N; ++i) data[i] = v.data[i];
  }
  constexpr packed_vec(const vec<T, N>& v) : Base(0) {
    for (int i = 0; i < N; ++i) data[i] = v[i];
  }
  template <typename S, typename = detail::enable_if_t<detail::is_scalar<S>>>
  constexpr packed_vec(S value) : packed_vec(vec<T, N>(value)) {}
  template <typename A, typename B, typename... C>
  constexpr packed_vec(const A& a, const B& b, const C&... c) : packed_vec(vec<T, N>(a, b, c...)) {}
  constexpr packed_vec& operator=(const packed_vec& v) {
    for (int i = 0; i < N; ++i) data[i] = v.data[i];
    return *this;
  }
  constexpr operator vec<T, N>() const {
    vec<T, N> v(T(0));
    for (int i = 0; i < N; ++i) v[i] = data[i];
    return v;
  }
  constexpr T& operator[](int i) { return data[i]; }
  constexpr const T& operator[](int i) const { return data[i]; }
};

namespace detail {

template <typename T, int N>
struct VectorOf<packed_vec<T, N>> {
  using type = vec<T, N>;
  using element = T;
  static constexpr int size = N;
};

}  // namespace detail

// --- operators: element by element; a scalar operand stands for a vector of it -------------------------

#define KD_BINARY(op)                                                                                \
  template <typename A, typename B, typename = detail::enable_if_t<detail::joint<A, B>>>             \
  constexpr auto operator op(const A& a, const B& b) {                                               \
    using T = detail::joint_element<A, B>;                                                           \
    vec<T, detail::joint_size<A, B>> out(T(0));                                                      \
    for (int i = 0; i < detail::joint_size<A, B>; ++i)                                               \
      out[i] = T(T(detail::element(a, i)) op T(detail::element(b, i)));                              \
    return out;                                                                                      \
  }                                                                                                  \
  template <typename T, int N, typename B, typename = detail::enable_if_t<detail::joint<vec<T, N>, B>>> \
  constexpr vec<T, N>& operator op##=(vec<T, N>& a, const B& b) {                                    \
    return a = a op b;                                                                               \
  }                                                                                                  \
  template <typename T, int N, int... I, typename B>                                                 \
  constexpr auto& operator op##=(detail::Swizzle<T, N, I...>& a, const B& b) {                       \
    return a = vec<T, sizeof...(I)>(a) op b;                                                         \
  }                                                                                                  \
  template <typename T, int N, typename B>                                                           \
  constexpr packed_vec<T, N>& operator op##=(packed_vec<T, N>& a, const B& b) {                      \
    return a = vec<T, N>(a) op b;                                                                    \
  }
KD_BINARY(+)
KD_BINARY(-)
KD_BINARY(*)
KD_BINARY(/)
KD_BINARY(%)
KD_BINARY(&)
KD_BINARY(|)
KD_BINARY(^)
KD_BINARY(<<)
KD_BINARY(>>)
#undef KD_BINARY

#define KD_RELATION(op)                                                                  \
  template <typename A, typename B, typename = detail::enable_if_t<detail::joint<A, B>>> \
  constexpr auto operator op(const A& a, const B& b) {                                   \
    using T = detail::joint_element<A, B>;                                               \
    vec<bool, detail::joint_size<A, B>> out(false);                                      \
    for (int i = 0; i < detail::joint_size<A, B>; ++i)                                   \
      out[i] = T(detail::element(a, i)) op T(detail::element(b, i));                     \
    return out;                                                                          \
  }
KD_RELATION(==)
KD_RELATION(!=)
KD_RELATION(<)
KD_RELATION(<=)
KD_RELATION(>)
KD_RELATION(>=)
KD_RELATION(&&)
KD_RELATION(||)
#undef KD_RELATION

#define KD_PREFIX(op, result)                                                      \
  template <typename A, typename = detail::enable_if_t<detail::is_vector<A>>>      \
  constexpr auto operator op(const A& a) {                                         \
    using T = result;                                                              \
    vec<T, detail::size_of<A>> out(T(0));                                          \
    for (int i = 0; i < detail::size_of<A>; ++i) out[i] = T(op detail::element(a, i)); \
    return out;                                                                    \
  }
KD_PREFIX(-, detail::element_of<A>)
KD_PREFIX(+, detail::element_of<A>)
KD_PREFIX(~, detail::element_of<A>)
KD_PREFIX(!, bool)
#undef KD_PREFIX

template <typename T, int N>
constexpr vec<T, N>& operator++(vec<T, N>& a) {
  return a += 1;
}
template <typename T, int N>
constexpr vec<T, N>& operator--(vec<T, N>& a) {
  return a -= 1;
}
template <typename T, int N>
constexpr vec<T, N> operator++(vec<T, N>& a, int) {
  vec<T, N> old = a;
  a += 1;
  return old;
}
template <typename T, int N>
constexpr vec<T, N> operator--(vec<T, N>& a, int) {
  vec<T, N> old = a;
  a -= 1;
  return old;
}

#define KD_NAMES(T)                    \
  using T##2 = vec<T, 2>;              \
  using T##3 = vec<T, 3>;              \
  using T##4 = vec<T, 4>;              \
  using packed_##T##2 = packed_vec<T, 2>; \
  using packed_##T##3 = packed_vec<T, 3>; \
  using packed_##T##4 = packed_vec<T, 4>;
KD_NAMES(bool)
KD_NAMES(char)
KD_NAMES(uchar)
KD_NAMES(short)
KD_NAMES(ushort)
KD_NAMES(int)
KD_NAMES(uint)
KD_NAMES(long)
KD_NAMES(ulong)
KD_NAMES(half)
KD_NAMES(bfloat)
KD_NAMES(float)
#undef KD_NAMES

}  // namespace metal
