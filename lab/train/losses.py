"""The codec's losses: spectra at several resolutions, and perceptually relevant envelopes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SAMPLE_RATE = 24_000


def mel_filters(bins: int, mels: int) -> Tensor:
    """Return triangular mel filters ``[mels, bins // 2 + 1]`` (O'Shaughnessy's mel scale)."""
    frequency = torch.linspace(0, SAMPLE_RATE / 2, bins // 2 + 1)
    top = 2595 * torch.log10(torch.tensor(1 + SAMPLE_RATE / 2 / 700))
    corner = 700 * (10 ** (torch.linspace(0, float(top), mels + 2) / 2595) - 1)
    rise = (frequency[None] - corner[:-2, None]) / (corner[1:-1] - corner[:-2])[:, None]
    fall = (corner[2:, None] - frequency[None]) / (corner[2:] - corner[1:-1])[:, None]
    return torch.minimum(rise, fall).clamp(min=0)


class SpectralLoss(nn.Module):
    """The loss of log-mel distance and spectral convergence at several resolutions (Yamamoto et al. 2020)."""

    def __init__(
        self, resolutions: tuple[tuple[int, int], ...] = ((256, 32), (512, 64), (1024, 80), (2048, 80))
    ) -> None:
        super().__init__()
        self.resolutions = resolutions
        for bins, mels in resolutions:
            self.register_buffer(f"mel_{bins}", mel_filters(bins, mels))
            self.register_buffer(f"window_{bins}", torch.hann_window(bins))

    def forward(self, decoded: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of ``decoded`` compared with ``target``, both ``[B, samples]``."""
        total = decoded.new_zeros(())
        for bins, _ in self.resolutions:
            window, mel = self.get_buffer(f"window_{bins}"), self.get_buffer(f"mel_{bins}")
            mine, theirs = (
                torch.stft(x, bins, bins // 4, window=window, return_complex=True).abs()
                for x in (decoded, target)
            )
            logs = [torch.log(mel @ x + 1e-4) for x in (mine, theirs)]
            total = (
                total + functional.l1_loss(logs[0], logs[1]) + (mine - theirs).norm() / (theirs.norm() + 1e-4)
            )
        return total / len(self.resolutions)


class EnvelopeLoss(nn.Module):
    """The loss of one minus the correlation of third-octave envelopes over 0.38 s, which STOI averages.

    After Taal et al. 2011, without its silence removal and clipping. ``[B, samples]`` at 24 kHz.
    """

    def __init__(self, bins: int = 614, hop: int = 307, frames: int = 30) -> None:
        super().__init__()
        self.bins, self.hop, self.frames = bins, hop, frames
        centres = 150 * 2 ** (torch.arange(15) / 3)
        frequency = torch.linspace(0, SAMPLE_RATE / 2, bins // 2 + 1)
        low, high = centres * 2 ** (-1 / 6), centres * 2 ** (1 / 6)
        self.register_buffer("bands", ((frequency >= low[:, None]) & (frequency < high[:, None])).float())
        self.register_buffer("window", torch.hann_window(bins))

    def _envelopes(self, pcm: Tensor) -> Tensor:
        spectrum = torch.stft(pcm, self.bins, self.hop, window=self.get_buffer("window"), return_complex=True)
        power = spectrum.real**2 + spectrum.imag**2
        bands = (self.get_buffer("bands") @ power + 1e-8).sqrt()
        return bands.unfold(-1, self.frames, self.frames // 2)

    def forward(self, decoded: Tensor, target: Tensor) -> Tensor:
        """Return the scalar loss of ``decoded`` compared with ``target``; segments with a silent target do
        not count."""
        mine, theirs = self._envelopes(decoded), self._envelopes(target)
        loud = (theirs.pow(2).mean(dim=(1, 3), keepdim=True).sqrt() > 1e-2).float()
        mine, theirs = (x - x.mean(-1, keepdim=True) for x in (mine, theirs))
        cosine = functional.cosine_similarity(mine, theirs, dim=-1, eps=1e-4)
        weight = loud.squeeze(-1).expand_as(cosine)
        return 1 - (cosine * weight).sum() / (weight.sum() + 1e-6)
