"""Polynomials with rational coefficients: exact Gaussian moments of their powers, and superorthogonal polynomials.

Everything here is arithmetic with whole numbers. Quadrature would not do: moments such as E[g³ He_2] of a polynomial of
degree 20 are differences of numbers that are larger by many orders of magnitude.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lowdim import checks, functions, links

# Relative rounding of coefficients that come from floating-point numbers: a few times 2^−53.
FLOAT_ROUNDING = Fraction(1, 2**49)
# Coefficients found by quadrature are worse, the small ones above all.
QUADRATURE_ROUNDING = Fraction(1, 2**36)
# Digits to which the one square root in the coefficients of the degree-20 polynomial is taken.
ROOT_DIGITS = 80
# A number counts as a simple fraction when it agrees with one of numerator and denominator up to this to twelve digits;
# such fractions are some 10^−8 apart, so that this hardly happens by chance.
SIMPLE = 10**4


@dataclass(frozen=True)
class Polynomial:
    """The polynomial f(z) = Σ_k a_k He_k(z) with Fractions a_0..a_p, in the un-normalised basis of the talks.

    `rounding` is the relative error of the coefficients: 0 if they are exact. A moment counts as zero when it is no
    larger than what this error can make of it. Called like a function, on NumPy arrays and on tensors.
    """

    coefficients: tuple
    rounding: Fraction = Fraction(0)

    def __post_init__(self):
        a = [Fraction(value) for value in self.coefficients]
        while len(a) > 1 and not a[-1]:
            a.pop()
        if not a:
            raise ValueError("coefficients is empty; at least a_0 is needed")
        object.__setattr__(self, "coefficients", tuple(a))

    @property
    def degree(self):
        """The degree p."""
        return len(self.coefficients) - 1

    @functools.cached_property
    def link(self):
        """The polynomial as a `links.Link`, for trainers and plots."""
        return links.polynomial([_times_root_factorial(a, k) for k, a in enumerate(self.coefficients)])

    @property
    def vectorised(self):
        """The polynomial in the form that the library's functions take."""
        return self.link.vectorised

    def __call__(self, z):
        return self.link(z)

    def scaled(self, latex=""):
        """The same polynomial divided by its root mean square, as a `links.Link`."""
        alpha = np.array(self.link.parameters)
        return links.polynomial(alpha / np.sqrt(np.sum(alpha**2)), latex)

    def moment(self, i, k):
        """E[f(z)^i He_k(z)] as a Fraction, for whole numbers i, k ≥ 0."""
        i, k = checks.whole_number("i", i, least=0), checks.whole_number("k", k, least=0)
        numerators, denominator = _power(self.coefficients, i)
        return Fraction(_gaussian_moment(numerators, k), denominator)

    def sensitivity(self, i, k):
        """How far relative errors of the coefficients move E[f^i He_k]: i Σ_j |a_j E[f^{i−1} He_j He_k]|."""
        numerators, denominator = _power(self.coefficients, i - 1)
        total = Fraction(0)
        for j, a in enumerate(self.coefficients):
            if a:
                product = _multiply(_multiply(numerators, _monomials(j)), _monomials(k))
                total += abs(a * Fraction(_gaussian_moment(product, 0), denominator))
        return i * total

    def is_zero_moment(self, i, k):
        """Whether E[f^i He_k] vanishes, or cannot be told from zero because the coefficients are rounded."""
        moment = self.moment(i, k)
        return not moment or (self.rounding > 0 and abs(moment) <= self.rounding * self.sensitivity(i, k))

    def exponent(self, power=1):
        """The information exponent of f^power: the least k ≥ 1 with E[f^power He_k] ≠ 0; math.inf for a constant."""
        power = checks.whole_number("power", power, least=1)
        for k in range(1, power * self.degree + 1):
            if not self.is_zero_moment(power, k):
                return k
        return math.inf


def _times_root_factorial(a, k):
    """The float a √(k!), without overflow for small a and large k."""
    return math.copysign(math.sqrt(a * a * math.factorial(k)), a)


@functools.lru_cache(maxsize=256)
def _monomials(k):
    """Whole-number coefficients of He_k in 1, z, z², …"""
    if k < 2:
        return (1,) if k == 0 else (0, 1)
    shifted, older = (0, *_monomials(k - 1)), _monomials(k - 2)
    return tuple(c - (k - 1) * (older[j] if j < len(older) else 0) for j, c in enumerate(shifted))


def _multiply(p, q):
    """Product of two polynomials with whole-number coefficients."""
    product = [0] * (len(p) + len(q) - 1)
    for i, a in enumerate(p):
        if a:
            for j, b in enumerate(q):
                if b:
                    product[i + j] += a * b
    return product


@functools.lru_cache(maxsize=64)
def _power(coefficients, i):
    """f^i in the basis 1, z, z², …: whole-number numerators and one denominator."""
    if i == 0:
        return [1], 1
    if i == 1:
        denominator = math.lcm(*(a.denominator for a in coefficients))
        numerators = [0] * len(coefficients)
        for k, a in enumerate(coefficients):
            for j, c in enumerate(_monomials(k)):
                numerators[j] += int(a * denominator) * c
        return numerators, denominator
    first, last = _power(coefficients, 1), _power(coefficients, i - 1)
    return _multiply(last[0], first[0]), last[1] * first[1]


def _gaussian_moment(monomials, k):
    """E[p(z) He_k(z)] = E[p^(k)(z)] for p with whole-number coefficients in 1, z, z², …"""
    total = 0
    for j in range(k, len(monomials), 2):
        if monomials[j]:
            # E[z^j He_k] = j!/(j − k)! · (j − k − 1)!!
            half = (j - k) // 2
            total += monomials[j] * math.factorial(j) // (math.factorial(half) * 2**half)
    return total


# ------------------------------------------------------------------------------------------- recognising polynomials


def recognise(f):
    """Return the `Polynomial` that `f` is, up to a positive factor, or None when it is none of degree ≤ 20.

    `f` is a Polynomial, a series of numpy.polynomial (Polynomial or HermiteE, taken as exact), a polynomial link, or a
    vectorised callable. Coefficients that agree with simple fractions to twelve digits become these fractions.
    """
    if isinstance(f, Polynomial):
        return f
    if isinstance(f, np.polynomial.Polynomial | np.polynomial.HermiteE):
        if not np.array_equal(f.domain, f.window):
            raise ValueError(f"f has domain {f.domain} and window {f.window}; they must be equal")
        if isinstance(f, np.polynomial.HermiteE):
            return Polynomial(tuple(f.coef))
        return _from_monomials([Fraction(c) for c in f.coef])
    link, rounding = getattr(f, "link", f), FLOAT_ROUNDING
    if not isinstance(link, links.Link):
        link, rounding = links.as_polynomial(functions.vectorised(f, "f")), QUADRATURE_ROUNDING
    if link is None or link.family != "hermite":
        return None
    a = [alpha / math.sqrt(math.factorial(k)) for k, alpha in enumerate(link.parameters)]
    for size in (1.0, max(map(abs, a), default=0.0), abs(a[-1])):
        simple = _simple_fractions(a, size)
        if simple is not None:
            return Polynomial(tuple(simple))
    return Polynomial(tuple(a), rounding=rounding)


def _simple_fractions(a, size):
    """The numbers a/size as fractions with small denominators, or None if one is not such a fraction."""
    if not size:
        return None
    ratios = [value / size for value in a]
    simple = [Fraction(ratio).limit_denominator(SIMPLE) for ratio in ratios]
    close = all(
        abs(s.numerator) <= SIMPLE and abs(float(s) - ratio) <= 1e-12 * abs(ratio)
        for s, ratio in zip(simple, ratios, strict=True)
    )
    return simple if close else None


def _from_monomials(c):
    """The Polynomial Σ_j c_j z^j: its coefficients a_k = E[f He_k]/k!."""
    denominator = math.lcm(*(value.denominator for value in c))
    numerators = [int(value * denominator) for value in c]
    a = [Fraction(_gaussian_moment(numerators, k), denominator * math.factorial(k)) for k in range(len(c))]
    return Polynomial(tuple(a))


# -------------------------------------------------------------------------------------------- superorthogonal ones


def superorthogonal(K, I):  # noqa: E741 (the talk's own letters)
    """Return a polynomial g ≠ 0 with E[g(z)^i He_k(z)] = 0 for all 1 ≤ k ≤ K and 1 ≤ i ≤ I, as a `Polynomial`.

    Such polynomials exist for all K and I. What is constructed here:

        I = 1        g = He_{K+1}
        K = 1        g = He_2, since all powers of an even function are orthogonal to z
        K ≤ 3, I = 2 the even polynomial of degree 20 of the talk: rational coefficients and one square root
        K ≤ 3, I = 3 an even polynomial of degree 60

    Other pairs raise ValueError. Why it works: among even polynomials without He_2 only k = 2 is left to care for. The
    form q(g) = E[g² He_2] = Σ_j 2j j! a_j² + 2 Σ_j (j+2)! a_j a_{j+2} is tridiagonal; it is positive up to degree 18,
    has a negative direction from degree 20 and a second one from degree 60.
    """
    K, I = checks.whole_number("K", K, least=1), checks.whole_number("I", I, least=1)  # noqa: E741
    if I == 1:
        return _he(K + 1)
    if K == 1:
        return _he(2)
    if K <= 3 and I == 2:
        return _degree_twenty()
    if K <= 3 and I == 3:
        return _degree_sixty()
    raise ValueError(
        f"K is {K} and I is {I}; a superorthogonal polynomial exists, but this library constructs one only for I = 1 "
        "(any K), for K = 1 (any I), and for K ≤ 3 with I ≤ 3"
    )


def _he(k):
    return Polynomial((0,) * k + (1,))


@functools.cache
def _degree_twenty():
    """Make q stationary in a_4, …, a_16 with a_4 = 1, then solve q = 0, a quadratic equation, for a_20.

    Stationarity in a_j reads (j+1)(j+2) a_{j+2} = −2j a_j − a_{j−2}. Given a_18 and the b = a_20 that this recursion
    would continue with, q = 20! (40 a_20² + 2 a_18 a_20 − a_18 b).
    """
    a = {2: Fraction(0), 4: Fraction(1)}
    for j in range(4, 20, 2):
        a[j + 2] = (-2 * j * a[j] - a[j - 2]) / ((j + 1) * (j + 2))
    under_root = a[18] ** 2 + 40 * a[18] * a[20]
    a[20] = (-a[18] + _square_root(under_root)) / 40
    return Polynomial(tuple(a.get(k, 0) for k in range(21)), rounding=Fraction(1, 10 ** (ROOT_DIGITS - 5)))


def _square_root(value):
    """√value of a positive Fraction to ROOT_DIGITS digits, as a Fraction."""
    shift = 10**ROOT_DIGITS * value.denominator
    return Fraction(math.isqrt(value.numerator * value.denominator * 10 ** (2 * ROOT_DIGITS)), shift)


@functools.cache
def _degree_sixty():
    """Walk from g to −g through q = 0, and stop where the odd function E[g³ He_2] changes sign.

    With two negative eigenvalues λ_1, λ_2 of q, two positive ones μ_1, μ_2 and unit eigenvectors u, v, all
    g(t) = cos t (u_1/√−λ_1 + v_1/√μ_1) + sin t (u_2/√−λ_2 + v_2/√μ_2) have q = 0, and g(t + π) = −g(t). In τ = tan t
    the third moment is a cubic polynomial, which has a real root.
    """
    degrees = np.arange(4, 61, 2)
    beside = np.sqrt((degrees[:-1] + 1.0) * (degrees[:-1] + 2.0))
    values, vectors = np.linalg.eigh(np.diag(2.0 * degrees) + np.diag(beside, 1) + np.diag(beside, -1))
    vectors = vectors * np.sign(vectors[0]) / np.sqrt(np.abs(values))
    ends = [_in_he_basis(degrees, vectors[:, i] + vectors[:, i + 2]) for i in (0, 1)]
    p, q = (_power(end.coefficients, 1) for end in ends)
    p, q = _common_denominator(p, q)
    products = [_multiply(_multiply(a, b), c) for a, b, c in ((p, p, p), (p, p, q), (p, q, q), (q, q, q))]
    cubic = [binomial * _gaussian_moment(product, 2) for binomial, product in zip((1, 3, 3, 1), products, strict=True)]
    tau = _real_root(cubic)
    mixed = [a + tau * b for a, b in zip(*(end.coefficients for end in ends), strict=True)]
    # The eigenvectors are floats: q vanishes to about fifteen digits.
    return Polynomial(tuple(mixed), rounding=Fraction(1, 2**44))


def _real_root(cubic):
    """A real root of Σ_j c_j τ^j with whole numbers c_0..c_3, by bisection with fractions: 200 binary digits."""

    def value(tau):
        return sum(c * tau**j for j, c in enumerate(cubic))

    high = Fraction(1)
    while value(high) * value(-high) > 0:
        high *= 2
    low, rises = -high, value(high) > 0
    while high - low > Fraction(1, 2**200):
        middle = (low + high) / 2
        low, high = (low, middle) if (value(middle) > 0) == rises else (middle, high)
    return low


def _in_he_basis(degrees, alpha):
    """The Polynomial Σ α_k h_k, with a_k = α_k/√k! kept to full precision."""
    a = [Fraction(0)] * (int(degrees[-1]) + 1)
    for k, value in zip(degrees, alpha, strict=True):
        a[int(k)] = Fraction(float(value)) * _square_root(Fraction(1, math.factorial(int(k))))
    return Polynomial(tuple(a))


def _common_denominator(p, q):
    """Numerators of two polynomials (numerators, denominator) over one denominator."""
    denominator = math.lcm(p[1], q[1])
    return [c * (denominator // p[1]) for c in p[0]], [c * (denominator // q[1]) for c in q[0]]
