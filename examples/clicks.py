"""Clicks: a log of what happened, without values. Which new article does each user open next?

Needs pip install '.[plot]'. The log is made up, so the best possible ranking is known: users like two topics
of eight, and articles of a topic differ in popularity. The last article that is new to a user is kept back.
"""

import matplotlib.pyplot as plt
import numpy as np

from spidertensor import SpiderClassifier

USERS, TOPICS, OF_TOPIC, CLICKS, N = 200, 8, 20, 8_000, 20
ARTICLES = TOPICS * OF_TOPIC
rng = np.random.default_rng(0)
popularity = 1 / np.arange(1, OF_TOPIC + 1)
interest = np.full((USERS, TOPICS), 0.2 / TOPICS)  # one click in five is on any topic
interest[np.arange(USERS)[:, None], [rng.choice(TOPICS, 2, replace=False) for _ in range(USERS)]] += 0.4
truth = (interest[:, :, None] * popularity / popularity.sum()).reshape(USERS, ARTICLES)
user = rng.integers(USERS, size=CLICKS)
article = np.array([rng.choice(ARTICLES, p=truth[each]) for each in user])

log = np.column_stack([user, article])
new = np.sort(np.unique(log, axis=0, return_index=True)[1])  # the first click of each user on each article
last = dict(zip(user[new].tolist(), new.tolist(), strict=True))
held = np.array([last[each] for each in range(USERS)])
past = np.delete(log, held, axis=0)

model = SpiderClassifier(negatives=16, negatives_over=1, remember_seen=True, passes=5)
model.fit(past)
ranked = model.recommend_many({0: np.arange(USERS)}, over=1, n=N)  # without what the user has had

had = np.zeros((USERS, ARTICLES))
had[past[:, 0], past[:, 1]] = 1
together = had.T @ had
alike = together / np.sqrt(np.outer(together.diagonal(), together.diagonal()))


def best(score):
    return np.argsort(np.where(had, -np.inf, score), axis=1, kind="stable")[:, ::-1][:, :N]


clicks = np.bincount(past[:, 1], minlength=ARTICLES)
tops = {
    "best possible": best(truth),
    "model": np.array([[each.id for each in one] for one in ranked]),
    "opened together (floor)": best(had @ alike),
    "popularity (floor)": best(np.tile(clicks, (USERS, 1))),
}
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, top in tops.items():
    hits = (top == article[held, None]).cumsum(axis=1).mean(axis=0)
    print(f"{name:25} next article among 1: {hits[0]:.2f}, 10: {hits[9]:.2f}, 20: {hits[19]:.2f}")
    axes.plot(np.arange(1, N + 1), hits, label=name)
axes.set(xlabel="articles shown", ylabel="share of users who open one")
axes.legend()
figure.savefig("clicks.png", dpi=100)
