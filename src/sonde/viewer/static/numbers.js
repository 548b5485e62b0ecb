// Arrays from the server: a shape, and floats of 32 bits, or of 64 where integers must stay exact.

export function unpacked({ shape, f32, f64 }) {
  const text = atob(f32 ?? f64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return { shape, data: f64 === undefined ? new Float32Array(bytes.buffer) : new Float64Array(bytes.buffer) };
}

// The name of an axis, for one index along it.
export function oneOf(axis) {
  return { length: "position", heads: "head", keys: "key", units: "unit" }[axis] ?? axis;
}

export function rangeOf(data) {
  let [low, high, bad] = [Infinity, -Infinity, 0];
  for (const x of data) {
    if (!Number.isFinite(x)) bad += 1;
    else {
      if (x < low) low = x;
      if (x > high) high = x;
    }
  }
  return low <= high ? { low, high, bad } : { low: 0, high: 0, bad };
}

export function rowsOf({ shape, data }) {
  const [rows, columns] = shape.slice(-2);
  return Array.from({ length: rows }, (_, i) => Array.from(data.subarray(i * columns, (i + 1) * columns)));
}
