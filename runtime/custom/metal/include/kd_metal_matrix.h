// Metal's matrices (Metal Shading Language Specification 2.3, 6.8): column-major, float and half.
#pragma once

#include <kd_metal_math.h>

namespace metal {

// C columns of R elements; m[c] is a column, m[c][r] an element.
template <typename T, int C, int R>
struct matrix {
  vec<T, R> columns[C];

  matrix() = default;
  // The value on the diagonal.
  constexpr explicit matrix(T value) : columns{} {
    for (int c = 0; c < C; ++c)
      for (int r = 0; r < R; ++r) columns[c][r] = c == r ? value : T(0);
  }
  // Columns, or all elements column by column.
  template <
      typename A, typename B, typename... More,
      typename = detail::enable_if_t<
          (detail::size_of<A> + detail::size_of<B> + ... + detail::size_of<More>) == C * R>>
  constexpr matrix(const A& a, const B& b, const More&... more) : columns{} {
    int at = 0;
    place(at, a);
    place(at, b);
    (place(at, more), ...);
  }
  template <typename U, typename = detail::enable_if_t<!detail::same<T, U>>>
  constexpr explicit matrix(const matrix<U, C, R>& m) : columns{} {
    for (int c = 0; c < C; ++c) columns[c] = vec<T, R>(m[c]);
  }
  constexpr vec<T, R>& operator[](int c) { return columns[c]; }
  constexpr const vec<T, R>& operator[](int c) const { return columns[c]; }

 private:
  template <typename A>
  constexpr void place(int& at, const A& a) {
    for (int i = 0; i < detail::size_of<A>; ++i, ++at) columns[at / R][at % R] = T(detail::element(a, i));
  }
};

#define KD_EACH_COLUMN(op)                                                                          \
  template <typename T, int C, int R>                                                               \
  constexpr matrix<T, C, R> operator op(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {       \
    matrix<T, C, R> out(T(0));                                                                      \
    for (int c = 0; c < C; ++c) out[c] = a[c] op b[c];                                              \
    return out;                                                                                     \
  }
KD_EACH_COLUMN(+)
KD_EACH_COLUMN(-)
#undef KD_EACH_COLUMN

template <typename T, int C, int R>
constexpr matrix<T, C, R> operator-(const matrix<T, C, R>& a) {
  matrix<T, C, R> out(T(0));
  for (int c = 0; c < C; ++c) out[c] = -a[c];
  return out;
}
template <typename T, int C, int R, typename S, typename = detail::enable_if_t<detail::is_scalar<S>>>
constexpr matrix<T, C, R> operator*(const matrix<T, C, R>& a, S scale) {
  matrix<T, C, R> out(T(0));
  for (int c = 0; c < C; ++c) out[c] = a[c] * scale;
  return out;
}
template <typename T, int C, int R, typename S, typename = detail::enable_if_t<detail::is_scalar<S>>>
constexpr matrix<T, C, R> operator*(S scale, const matrix<T, C, R>& a) {
  return a * scale;
}
// A matrix and a column vector, of as many elements as there are columns.
template <typename T, int C, int R, typename V, typename = detail::enable_if_t<detail::size_of<V> == C && detail::is_vector<V>>>
constexpr vec<T, R> operator*(const matrix<T, C, R>& a, const V& v) {
  vec<T, R> out = a[0] * T(v[0]);
  for (int c = 1; c < C; ++c) out = out + a[c] * T(v[c]);
  return out;
}
// A row vector, of as many elements as there are rows, and a matrix.
template <typename T, int C, int R, typename V, typename = detail::enable_if_t<detail::size_of<V> == R && detail::is_vector<V>>, typename = void>
inline vec<T, C> operator*(const V& v, const matrix<T, C, R>& a) {
  vec<T, C> out(T(0));
  for (int c = 0; c < C; ++c) out[c] = dot(vec<T, R>(v), a[c]);
  return out;
}
template <typename T, int K, int R, int C>
constexpr matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
  matrix<T, C, R> out(T(0));
  for (int c = 0; c < C; ++c) out[c] = a * b[c];
  return out;
}
#define KD_ASSIGN(op)                                                              \
  template <typename T, int C, int R, typename B>                                  \
  constexpr matrix<T, C, R>& operator op##=(matrix<T, C, R>& a, const B& b) {      \
    return a = a op b;                                                             \
  }
KD_ASSIGN(+)
KD_ASSIGN(-)
KD_ASSIGN(*)
#undef KD_ASSIGN
template <typename T, int C, int R>
constexpr bool operator==(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  bool equal = true;
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r) equal = equal && a[c][r] == b[c][r];
  return equal;
}
template <typename T, int C, int R>
constexpr bool operator!=(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  return !(a == b);
}

template <typename T, int C, int R>
constexpr matrix<T, R, C> transpose(const matrix<T, C, R>& a) {
  matrix<T, R, C> out(T(0));
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r) out[r][c] = a[c][r];
  return out;
}

// By expansion along the first column.
template <typename T, int N>
constexpr T determinant(const matrix<T, N, N>& a) {
  if constexpr (N == 2) {
    return T(a[0][0] * a[1][1] - a[1][0] * a[0][1]);
  } else {
    T sum = T(0);
    for (int row = 0; row < N; ++row) {
      matrix<T, N - 1, N - 1> minor(T(0));
      for (int c = 1; c < N; ++c)
        for (int r = 0, at = 0; r < N; ++r)
          if (r != row) minor[c - 1][at++] = a[c][r];
      T term = T(a[0][row] * determinant(minor));
      sum = row % 2 ? T(sum - term) : T(sum + term);
    }
    return sum;
  }
}

#define KD_NAMES(T)                                                                          \
  using T##2x2 = matrix<T, 2, 2>;                                                            \
  using T##2x3 = matrix<T, 2, 3>;                                                            \
  using T##2x4 = matrix<T, 2, 4>;                                                            \
  using T##3x2 = matrix<T, 3, 2>;                                                            \
  using T##3x3 = matrix<T, 3, 3>;                                                            \
  using T##3x4 = matrix<T, 3, 4>;                                                            \
  using T##4x2 = matrix<T, 4, 2>;                                                            \
  using T##4x3 = matrix<T, 4, 3>;                                                            \
  using T##4x4 = matrix<T, 4, 4>;
KD_NAMES(float)
KD_NAMES(half)
#undef KD_NAMES

}  // namespace metal
