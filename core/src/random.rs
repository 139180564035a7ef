//! Random numbers for drawn states and loads.

/// SplitMix64 (Steele, Lea and Flood 2014): fast, and good enough for draws that nothing else rests on.
pub struct Random(u64);

impl Random {
    /// Numbers that differ by stream.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(stream);
        Self(seed ^ mixed.bits())
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to less than 1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Seconds until the next of visits that come at random, so many a second.
    pub fn wait(&mut self, rate: f64) -> f64 {
        if rate > 0.0 {
            -(1.0 - self.uniform()).ln() / rate
        } else {
            f64::INFINITY
        }
    }

    /// The place of one of these shares of 1, each as likely as it is large; what is missing to 1 is the last one's.
    pub fn place(&mut self, shares: &[f64]) -> usize {
        let drawn = self.uniform();
        let mut sum = 0.0;
        let passed = shares[..shares.len() - 1].iter().take_while(|share| {
            sum += *share;
            drawn >= sum
        });
        passed.count()
    }

    /// Bring values into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, (self.uniform() * (last + 1) as f64) as usize);
        }
    }

    /// One of these values, each as likely.
    pub fn one_of(&mut self, values: &[f64]) -> Option<f64> {
        let at = (self.uniform() * values.len() as f64) as usize;
        values.get(at).copied()
    }
}
